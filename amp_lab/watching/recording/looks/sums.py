"""Sums that are kept over steps, in 16 bits."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from amp_lab.watching.recording.looks.calls import HALVES, Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import late, peak


class Sums(Judge):
    """Notes "running sum": at one line, something is added to the result that the line had in an earlier step."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._last: dict[object, tuple[int, weakref.ref[torch.Tensor]]] = {}

    def after(self, call: Call) -> None:
        if call.backward or call.origin != "user":
            return
        if call.inplace and call.name == "mul" and isinstance(call.target, torch.Tensor):
            self.tags.put(call.target, "decays", True)
        if (
            call.name != "add"
            or call.dtype not in HALVES
            or call.result.dim() > 1
            or not is_plain(call.result)
        ):
            return
        if self._kept(call.line, call.args) and not self._no_sum(call.result):
            self.notes.add(
                "running sum",
                call.line,
                {"dtype": call.dtype, "inplace": call.inplace},
                total=_number(call.result),
                added=_number(call.args[1] if len(call.args) > 1 else None),
            )
        self._last[call.line] = (self.bench.step, weakref.ref(call.result))

    def _kept(self, line: object, given: tuple[Any, ...]) -> bool:
        """Return whether one of the summands is what the line made in an earlier step."""
        step, last = self._last.get(line, (0, None))
        result = last() if last is not None else None
        return result is not None and step < self.bench.step and any(each is result for each in given)

    def _no_sum(self, tensor: torch.Tensor) -> bool:
        """Return whether it is a moving average, a weight or a gradient."""
        if self.tags.of(tensor, "decays") or self.tags.of(tensor, "gradient") is not None:
            return True
        return isinstance(tensor, torch.nn.Parameter) or self.bench.owner(tensor) is not None


def _number(value: object) -> object:
    """Return the largest size in a tensor, unread, or a plain number as it is."""
    if isinstance(value, torch.Tensor):
        size = peak(value) if is_plain(value) else None
        return late(size) if size is not None else None
    return value if type(value) in (int, float) else None
