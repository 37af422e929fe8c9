"""Averages of the weights, in real loops and in runs made by hand."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amp_lab.watching.recording.events import Averaged, Saved
from tests.watching.tapes import Tape, found
from tests.watching.training import Training, report_of, said_by


@pytest.fixture(autouse=True)
def _pytorch_may_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _ema(training: Training) -> AveragedModel:
    return AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def test_a_guarded_average_gets_nothing() -> None:
    def loop(training: Training) -> None:
        ema = _ema(training)
        for taken in training.steps():
            if taken:
                ema.update_parameters(training.model)

    assert said_by("averages", report_of(Training(12, (1, 5, 6)), loop)) == []


def test_an_average_that_moves_on_skipped_steps_is_told() -> None:
    def loop(training: Training) -> None:
        ema = _ema(training)
        for _ in training.steps():
            ema.update_parameters(training.model)

    report = report_of(Training(12, (4,)), loop)
    assert said_by("averages", report) == ["average-on-skip"]
    assert "AveragedModel was updated in step 4, though" in report["average-on-skip"].sentence
    assert said_by("averages", report_of(Training(12), loop)) == []


def test_an_average_once_an_epoch_may_follow_a_skipped_step() -> None:
    def loop(training: Training) -> None:
        swa = AveragedModel(training.model)
        for number, _ in enumerate(training.steps(), start=1):
            if number % 4 == 0:
                swa.update_parameters(training.model)

    assert said_by("averages", report_of(Training(16, (8,)), loop)) == []


def test_an_average_at_the_beginning_of_the_loop_is_that_of_the_step_before() -> None:
    def loop(training: Training) -> None:
        ema = _ema(training)
        for x, y in training.data:
            ema.update_parameters(training.model)
            training.backward(x, y)
            training.step()

    assert said_by("averages", report_of(Training(8), loop)) == []


def test_an_average_by_hand_that_was_seen_around_a_skip() -> None:
    """By hand it is seen in the first three steps, and from a skipped step to the end of the next."""
    tape = Tape()
    for number in range(1, 13):
        tape.step(skip=number == 7)
        if number in (1, 2, 3, 7, 8):
            tape.note(Averaged, line=7, average=1, dtype=torch.float32, share=0.001, **{"kind": None})
    (finding,) = found("average-on-skip", tape.run())
    assert "The average of the weights was updated in step 7" in finding.sentence


def test_an_average_by_hand_that_waits_for_real_steps() -> None:
    tape = Tape()
    for number in range(1, 13):
        tape.step(skip=number == 7)
        if number in (1, 2, 3, 8):
            tape.note(Averaged, line=7, average=1, dtype=torch.float32, share=0.001, **{"kind": None})
    assert found("average-on-skip", tape.run()) == []


def test_an_average_in_fp32_by_hand_gets_nothing() -> None:
    def loop(training: Training) -> None:
        ema = copy.deepcopy(training.model)
        for taken in training.steps():
            if taken:
                with torch.no_grad():
                    for average, weight in zip(ema.parameters(), training.model.parameters(), strict=True):
                        average.mul_(0.99).add_(weight, alpha=0.01)

    assert said_by("averages", report_of(Training(8), loop)) == []


@pytest.mark.parametrize(
    ("dtype", "share", "words"),
    [
        (
            torch.float16,
            0.001,
            "FP16 loses changes below about 1/2,048 of a number, so it stands still while the",
        ),
        (torch.float16, 0.001, "up to 49% away"),
        (torch.bfloat16, 0.1, "BF16 loses changes below about 1/256 of a number"),
        (torch.bfloat16, 0.1, "up to 4% away"),
        (torch.bfloat16, None, "it stops following them"),
    ],
)
def test_an_average_in_16_bits(dtype: torch.dtype, share: float | None, words: str) -> None:
    tape = Tape()
    for _ in range(2):
        tape.step()
        tape.note(Averaged, average=1, dtype=dtype, share=share, **{"kind": None})
    (finding,) = found("average-in-half", tape.run())
    assert words in finding.sentence


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float32, 0.001), (torch.float16, 0.5), (torch.float64, None)]
)
def test_an_average_that_can_follow(dtype: torch.dtype, share: float | None) -> None:
    tape = Tape().step()
    tape.note(Averaged, average=1, dtype=dtype, share=share, **{"kind": None})
    assert found("average-in-half", tape.run()) == []


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float16, 0.001), (torch.float16, 0.01), (torch.bfloat16, 0.1)]
)
def test_where_an_average_stands_still(dtype: torch.dtype, share: float) -> None:
    """What the sentence says: from half below a weight of 1 it follows no nearer than about the distance named."""
    named = torch.finfo(dtype).eps / 2 / share
    average, weight = torch.tensor(0.5, dtype=dtype), torch.tensor(1.0, dtype=dtype)
    for _ in range(round(12 / share)):
        average += share * (weight - average)
    left = 1.0 - average.item()
    assert named / 4 < left <= named
    exact = torch.tensor(0.5)
    for _ in range(round(12 / share)):
        exact += share * (1.0 - exact)
    assert 1.0 - exact.item() < 1e-3


def test_a_checkpoint_with_the_average_gets_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        ema = _ema(training)
        for taken in training.steps():
            if taken:
                ema.update_parameters(training.model)
        parts = {"m": training.model, "o": training.optimizer, "s": training.scaler, "e": ema}
        torch.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / "all.pt")

    assert said_by(("averages", "checkpoints"), report_of(Training(6), loop)) == []


def test_a_checkpoint_with_the_average_in_a_file_of_its_own_gets_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        ema = _ema(training)
        for taken in training.steps():
            if taken:
                ema.update_parameters(training.model)
        parts = {"m": training.model, "o": training.optimizer, "s": training.scaler, "e": ema}
        for name, part in parts.items():
            torch.save(part.state_dict(), tmp_path / f"{name}.pt")

    assert said_by(("averages", "checkpoints"), report_of(Training(6), loop)) == []


def test_weights_alone_need_no_average() -> None:
    tape = Tape()
    for _ in range(4):
        tape.step()
        tape.note(Averaged, average=1, dtype=torch.float32, **{"kind": "AveragedModel"})
    tape.note(Saved, has=frozenset({"model"}))
    assert found("average-not-saved", tape.run()) == []
    tape.note(Saved, has=frozenset({"model", "optimizer"}))
    (finding,) = found("average-not-saved", tape.run())
    assert "which had moved 4 times" in finding.sentence
