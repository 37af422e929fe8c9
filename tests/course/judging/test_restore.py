"""Settings of PyTorch that change numbers, and that a lesson on numbers makes people try."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from amp_lab.course.judging.guard import Guard


def smallest_survives() -> bool:
    return bool((torch.tensor([1e-40]) * 1).any())


def fp32_precision() -> tuple[str, ...]:
    owners = (
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,
        torch.backends.cudnn.rnn,
        torch.backends.mkldnn.matmul,
    )
    return tuple(owner.fp32_precision for owner in owners)


def set_flag_to(owner: Any, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def set_flag(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, not getattr(owner, name))


@pytest.mark.parametrize(
    ("disturb", "read"),
    [
        (lambda: torch.set_flush_denormal(smallest_survives()), smallest_survives),
        (lambda: torch.set_float32_matmul_precision("medium"), fp32_precision),
        (set_flag_to(torch.backends.cuda.matmul, "fp32_precision", "tf32"), fp32_precision),
        (set_flag_to(torch.backends.cudnn.conv, "fp32_precision", "ieee"), fp32_precision),
        (set_flag_to(torch.backends.cudnn, "allow_tf32", False), fp32_precision),  # of RNNs, too
        (
            set_flag(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
            lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        ),
        (set_flag(torch.backends.cudnn, "benchmark"), lambda: torch.backends.cudnn.benchmark),
        (set_flag(torch.backends.cudnn, "deterministic"), lambda: torch.backends.cudnn.deterministic),
    ],
    ids=[
        "subnormals",
        "one switch",
        "TF32 products",
        "no TF32 convolutions",
        "no TF32 in cuDNN",
        "reduced reductions",
        "benchmark",
        "deterministic",
    ],
)
def test_settings_that_change_numbers_are_put_back(
    disturb: Callable[[], Any], read: Callable[[], Any]
) -> None:
    before = read()
    changed = []

    def learner() -> None:
        disturb()
        changed.append(read())

    Guard().call(learner)
    assert changed != [before], "the test disturbed nothing"
    assert read() == before


def test_a_log_handler_made_by_checked_code_is_heard_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    logger, guard = logging.getLogger("learner"), Guard()
    logger.propagate = False

    def learner() -> None:
        logger.addHandler(logging.StreamHandler())
        logger.warning("inside")

    try:
        guard.call(learner)
        logger.warning("afterwards")
    finally:
        logger.handlers.clear()
    assert guard.output == "inside\n"
    assert capsys.readouterr().err == "afterwards\n"
