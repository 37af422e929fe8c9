"""Noting what a look saw: one event for each line of code and step, and numbers that are read later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.look import Bench

_CALLS: Final = 32  # of one line in one step whose numbers are kept
_NUMBERS: Final = 8192  # in all: on a GPU each takes 512 bytes


class Notes:
    """Emits `Noticed` events. What happens at the same line again, in the same step, is added to the first event.

    `values["seen"]` of each event is a list with a dictionary of numbers for each call.
    """

    def __init__(self, bench: Bench):
        self._bench, self._numbers = bench, 0
        self._open: dict[tuple[str, object], list[dict[str, object]]] = {}
        self._step = 0

    def add(self, what: str, key: object, facts: dict[str, object], **numbers: object) -> None:
        """Note something at a line (`key`), with facts that are the same for each call there, and numbers."""
        if self._bench.step != self._step:
            self._open.clear()
            self._step = self._bench.step
        seen = self._open.get((what, key))
        if seen is None:
            seen = self._open[what, key] = []
            self._bench.emit(Noticed, what=what, values={**facts, "seen": seen})
        if len(seen) < _CALLS and self._numbers < _NUMBERS:
            seen.append(numbers)
            self._numbers += len(numbers)

    def drop(self, what: str, key: object) -> None:
        """Take back the numbers of what turned out to be harmless: an event with nothing in `seen` says nothing."""
        if seen := self._open.get((what, key)):
            seen.clear()


def peak(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the largest size in a tensor of floating-point numbers (NaN if there is one), on its device, unread."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    with torch.no_grad():
        size: torch.Tensor = torch.linalg.vector_norm(tensor.detach(), float("inf"))
        return size


def late(number: torch.Tensor) -> Later[float]:
    """Return a number for later. One that is on the CPU is read at once: nothing has to be waited for."""
    if number.device.type != "cpu":
        return Later(float, number)
    value: float = number.tolist()  # type: ignore[assignment]
    return Later(float, value)


def any_of(truth: torch.Tensor) -> Later[bool]:
    """Return, for later, whether any of a tensor's truth values is true."""
    some = truth.any()
    if some.device.type != "cpu":
        return Later(bool, some)
    value: bool = some.tolist()  # type: ignore[assignment]
    return Later(bool, value)


def may_be(number: Later[float], test: Callable[[float], bool]) -> bool:
    """Return whether a number passes a test, or may, since it has not been read."""
    return not number.known or test(number.value)
