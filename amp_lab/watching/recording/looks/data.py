"""NaN and infinity in the data of a step that was skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import torch

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.looks.calls import is_plain
from amp_lab.watching.recording.looks.frames import loop_variables, users_frames, variables_of
from amp_lab.watching.recording.looks.look import Bench, Look
from amp_lab.watching.recording.looks.noting import any_of

_SKIPS: Final = 8  # that are looked at
_TENSORS: Final = 16  # of a batch


class Data(Look):
    """Notes "data", for each tensor in the loop variables (`for x, y in batches`) of a skipped step."""

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self._skips = 0

    def step_ended(self, skipped: bool) -> None:
        if not skipped or self._skips >= _SKIPS:
            return
        self._skips += 1
        for name, tensor in _data(sys._getframe()):
            bad = any_of(~tensor.isfinite())
            if not bad.known or bad.value:
                self.bench.emit(Noticed, what="data", values={"name": name, "seen": [{"bad": bad}]})


def _data(frame: FrameType | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in the loop variables of the user's frames on the stack."""
    for each in users_frames(frame):
        for name, value in variables_of(each, loop_variables(each.f_code)).items():
            yield from ((name, tensor) for tensor in _tensors(value)[:_TENSORS])


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of data in a variable: floating-point numbers that nothing was computed for by autograd."""
    if isinstance(value, dict):
        value = list(value.values())
    several = value if isinstance(value, list | tuple) else [value]
    return [
        each
        for each in several
        if isinstance(each, torch.Tensor)
        and is_plain(each)
        and each.is_floating_point()
        and not each.requires_grad
        and each.dim() > 0
    ]
