"""Penalties on gradients that are computed from a scaled loss, and never divided by the scale."""

from __future__ import annotations

from typing import Final

import torch

from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.calls import Call
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import late

_SAME: Final = frozenset(
    "view reshape flatten cat stack contiguous float to squeeze unsqueeze add __getitem__".split()
)
_SIZES: Final = frozenset("norm vector_norm pow square abs".split())


class Penalties(Judge):
    """Notes "penalty": a gradient of torch.autograd.grad(scaled loss, create_graph=True) was squared as it was.

    Whether the loss was scaled, the event of that call tells.
    """

    def after(self, call: Call) -> None:
        if call.backward:
            return
        if call.name == "grad" and isinstance(call.result, tuple):
            self._made(call)
            return
        if not isinstance(call.result, torch.Tensor) or call.origin != "user":
            return
        for each in call.tensors():
            if (scale := self.tags.of(each, "scaled gradient")) is not None:
                self._used(call, scale)
                return
            if (line := self.tags.of(each, "size of scaled gradient")) is not None and self._unscales(call):
                self.notes.drop("penalty", line)

    def _made(self, call: Call) -> None:
        if call.argument(4, "create_graph") and call.origin == "user":
            scale = self.bench.scale()
            for each in call.result:
                if isinstance(each, torch.Tensor) and scale is not None:
                    self.tags.put(each, "scaled gradient", scale)

    def _used(self, call: Call, scale: Later[float]) -> None:
        if call.name in _SAME:
            self.tags.put(call.result, "scaled gradient", scale)
        elif call.name in _SIZES:
            size = call.result.detach()
            if size.dim() == 0:
                self.notes.add(
                    "penalty", call.line, {"call": call.name, "scale": scale}, size=late(size.clone())
                )
            else:
                self.notes.add(
                    "penalty", call.line, {"call": call.name, "scale": scale}, size=late(size.amax())
                )
            self.tags.put(call.result, "size of scaled gradient", call.line)

    def _unscales(self, call: Call) -> bool:
        """Return whether a call may take the scale out: a weight of the penalty is not below a half."""
        if call.name not in ("mul", "div") or len(call.args) < 2:
            return False
        by = call.args[1]
        if isinstance(by, torch.Tensor):
            return by.numel() == 1
        return type(by) in (int, float) and (abs(by) > 1 if call.name == "div" else abs(by) < 0.5)
