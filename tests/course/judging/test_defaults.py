"""What a check starts from, whatever the page has set, and that the page finds its own settings again."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.defaults import as_after_import
from amp_lab.course.judging.exercise import judge
from amp_lab.course.judging.restore import put_back
from tests.course.probe import DOUBLE


def _state() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "device": torch.ones(1).device.type,
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "subnormals": torch.full((1,), 1e-40, dtype=torch.float32, device="cpu").mul_(1.0).item() > 0,
        "products": torch.get_float32_matmul_precision(),
        "NumPy": np.geterr(),
        "printed": str(np.float32(1.00390625)),
    }


# How a page changes a setting, and how this test undoes it.
SETTINGS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    "gradients": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "anomaly": (lambda: torch.set_anomaly_enabled(True), lambda: torch.set_anomaly_enabled(False)),
    "autocast": (
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.set_autocast_enabled("cpu", False),
    ),
    "cache": (
        lambda: torch.set_autocast_cache_enabled(False),
        lambda: torch.set_autocast_cache_enabled(True),
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "subnormals": (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    "products": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "NumPy": (
        lambda: np.seterr(all="raise"),
        lambda: np.seterr(divide="warn", over="warn", under="ignore", invalid="warn"),
    ),
    "printed": (lambda: np.set_printoptions(legacy="1.13"), lambda: np.set_printoptions(legacy=False)),
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Iterator[str]:
    change, undo = SETTINGS[request.param]
    with put_back():  # `undo` leaves the switches of the libraries at "ieee", which is not where they were
        change()
        yield request.param
        undo()


def test_a_check_starts_from_the_defaults_and_leaves_what_was_set(setting: str) -> None:
    undo = SETTINGS[setting][1]
    before = _state()
    with as_after_import():
        inside = _state()
    assert _state() == before
    undo()
    assert inside == _state()
    assert before[setting] != inside[setting]


@pytest.mark.parametrize("region", [lambda: torch.inference_mode(), lambda: torch.device("meta")])
def test_a_region_around_the_check_is_left_at_its_door(region: Callable[[], Any]) -> None:
    outside = _state()
    with region():
        before = _state()
        assert before != outside
        with as_after_import():
            assert _state() == outside
            assert torch.ones(1, requires_grad=True).add(1).requires_grad
        assert _state() == before
    assert _state() == outside


def test_a_default_device_and_a_region_are_both_outdone() -> None:
    torch.set_default_device("meta")
    try:
        with torch.device("meta"):
            with as_after_import():
                assert torch.ones(1).device.type == "cpu"
            assert torch.ones(1).is_meta
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("error", [AttributeError, AssertionError])
def test_a_default_device_that_pytorch_cannot_tell(error: type[Exception], monkeypatch: Any) -> None:
    """2.9 raises one error once it was set to None, and every version the other where it is a GPU and there is none."""

    def cannot_tell() -> None:
        raise error

    monkeypatch.setattr(torch, "get_default_device", cannot_tell)
    with as_after_import():
        assert torch.ones(1).device.type == "cpu"


def test_the_check_and_the_answer_see_the_same_defaults() -> None:
    seen = []

    def check(ask: Ask) -> None:
        seen.append(torch.empty(0).dtype)
        ask()

    torch.set_default_dtype(torch.float64)
    try:
        verdict = judge(DOUBLE, check, lambda: seen.append(torch.empty(0).dtype))
        assert verdict.passed
        assert seen == [torch.float32, torch.float32]
        assert torch.empty(0).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_defaults_are_those_of_a_fresh_process() -> None:
    code = "from tests.course.judging.test_defaults import _state; print(_state())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with as_after_import():
        assert done.stdout.strip() == str(_state())
