"""The loop's own variables around a step that was skipped: sums that became NaN, counters that counted it.

Only names that the code adds to are looked at (`total += loss.item()`, `step = step + 1`), once at the beginning and
after skips. Python's numbers are read; tensors of one element are copied, and read later.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any, Final

import torch

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.calls import is_plain
from amp_lab.watching.recording.looks.frames import running_names, users_frames, variables_of
from amp_lab.watching.recording.looks.look import Bench, Look
from amp_lab.watching.recording.looks.noting import late, may_be

# Names of counters that say that they count updates of the weights.
_COUNTS_UPDATES: Final = re.compile(
    r"(n_|num_|total_)?(global_?steps?|(weight_)?updates?|(opt|optim|optimizer)_?steps?|update_(count|steps?))"
    r"(_done|_taken)?",
    re.IGNORECASE,
)
_SKIPS: Final = 8  # that are looked at

_Key = tuple[int, str]  # the id of the code, which its frame keeps alive, and the name
_Number = int | float | torch.Tensor


class Variables(Look):
    """Notes "sum", a variable that was NaN or infinite after a skipped step and stayed so; and "counter"."""

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self._first: dict[_Key, _Number] = {}
        self._first_step = 0
        self._suspects: dict[_Key, tuple[int, Later[float]]] = {}  # (the skipped step, the value after it)
        self._skipped, self._skips, self._looked = 0, 0, 0

    def begin_step(self, step: int) -> None:
        if not self._first_step:
            self._first_step = step
            self._first = {
                key: value for key, value in _running().items() if not isinstance(value, torch.Tensor)
            }
        elif self._skipped and self._looked < _SKIPS:
            self._looked += 1
            running = _running()
            self._suspect(running)
            self._count(running, step)
        elif self._suspects:
            self._judge(_running())
        self._skipped = 0

    def step_ended(self, skipped: bool) -> None:
        if skipped:
            self._skips += 1
            self._skipped = self.bench.step

    def stop(self) -> None:
        self._first.clear()
        self._suspects.clear()

    def _suspect(self, running: dict[_Key, _Number]) -> None:
        """Remember what is not finite after the skipped step, and was not so at the beginning."""
        for key, value in running.items():
            if key in self._suspects or not math.isfinite(_plain(self._first.get(key, 0))):
                continue
            after = _late(value)
            if may_be(after, lambda number: not math.isfinite(number)):
                self._suspects[key] = self._skipped, after

    def _judge(self, running: dict[_Key, _Number]) -> None:
        """After a step that was not skipped: note what is still not finite, and so was not computed anew."""
        for key, (step, after) in self._suspects.items():
            if (value := running.get(key)) is not None:
                later = _late(value)
                if may_be(later, lambda number: not math.isfinite(number)):
                    values = {"name": key[1], "step": step, "after": after, "later": later}
                    self.bench.emit(Noticed, what="sum", values=values)
        self._suspects.clear()

    def _count(self, now: dict[_Key, _Number], step: int) -> None:
        """Note counters that went up by one in every step since the first one, also in those that were skipped."""
        for key, value in now.items():
            first = self._first.get(key)
            if type(value) is not int or type(first) is not int or not _COUNTS_UPDATES.fullmatch(key[1]):
                continue
            if value - first == step - self._first_step:
                values = {"name": key[1], "step": self._skipped, "value": value}
                self.bench.emit(Noticed, what="counter", values=values)


def _plain(value: _Number) -> float:
    return 0.0 if isinstance(value, torch.Tensor) else float(value)


def _late(value: _Number) -> Later[float]:
    return late(value.detach().clone()) if isinstance(value, torch.Tensor) else Later(float, value)


def _running() -> dict[_Key, _Number]:
    """Return the numbers to which the user's code on the stack adds."""
    return {
        (id(frame.f_code), name): value
        for frame in users_frames(sys._getframe())
        for name, value in variables_of(frame, running_names(frame.f_code)).items()
        if type(value) in (int, float) or _is_number(value)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_plain(value) and value.numel() == 1
