"""What hooks on gradients do in a backward pass: there, too, gradients are multiplied by the scale."""

from __future__ import annotations

from typing import Final

import torch

from amp_lab.watching.recording.looks.calls import Call, in_a_hook
from amp_lab.watching.recording.looks.gradients_used import SIZES
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import late

_CHANGES: Final = {
    "clamp": "clamped",
    "clamp_min": "clamped",
    "clamp_max": "clamped",
    "nan_to_num": "overflow hidden",
}
_TESTS: Final = frozenset("isfinite isnan isinf".split())


class Hooks(Judge):
    """Notes "hook": the user's code clamped a gradient, or took its size, in a backward pass.

    Whether that was of a scaled loss, the event of the backward pass tells.
    """

    def after(self, call: Call) -> None:
        if not call.backward or call.origin != "user":
            return
        if call.name in _TESTS and call.args:
            if (line := self.tags.of(call.args[0], "read in a hook")) is not None:
                self.notes.drop("hook", line)
            return
        how = "read" if call.name in SIZES else _CHANGES.get(call.name)
        given = call.args[0] if call.args else None
        if how is None or not isinstance(given, torch.Tensor) or not given.is_floating_point():
            return
        if not in_a_hook(call.frame):
            return
        key = (call.line, how)
        result = call.result if isinstance(call.result, torch.Tensor) and how == "read" else None
        scalar = result is not None and result.dim() == 0
        self.notes.add(
            "hook",
            key,
            {"how": how, "call": call.name, "scale": self.bench.scale()},
            size=late(result.detach().clone()) if scalar and result is not None else None,
        )
        if result is not None:
            self.tags.put(result, "read in a hook", key)
