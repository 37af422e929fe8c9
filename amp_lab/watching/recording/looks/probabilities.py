"""Probabilities that were rounded to 16 bits, and then met a logarithm."""

from __future__ import annotations

from typing import Final

import torch

from amp_lab.watching.recording.looks.calls import HALVES, Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import any_of

_MADE_BY: Final = frozenset({"sigmoid", "softmax"})
_SAME: Final = frozenset(
    "float double to half bfloat16 type view reshape squeeze unsqueeze flatten clone contiguous clamp "
    "__getitem__ gather".split()
)
_LOSSES: Final = {"binary_cross_entropy": "loss", "log": "log", "nll_loss": "loss"}


class Probabilities(Judge):
    """Notes "probabilities": `saturated` says whether some are exactly 0 or 1 where they meet the logarithm."""

    def after(self, call: Call) -> None:
        if call.backward or not isinstance(call.result, torch.Tensor):
            return
        if call.name in _MADE_BY and call.dtype in HALVES:
            self.tags.put(call.result, "probabilities", call.dtype)
        elif call.args and call.name in _SAME:
            self.tags.pass_on(call.args[0], call.result, "probabilities")
            if call.name in ("half", "bfloat16", "to") and call.dtype in HALVES:
                self._narrowed(call)
        elif call.args and call.name == "rsub":
            self.tags.pass_on(call.args[0], call.result, "probabilities")
        elif call.name in _MADE_BY:
            self.tags.put(call.result, "wide probabilities", True)
        if call.name in _LOSSES and call.args:
            self._met(call, call.args[0])

    def _narrowed(self, call: Call) -> None:
        if self.tags.of(call.args[0], "wide probabilities"):
            self.tags.put(call.result, "probabilities", call.dtype)

    def _met(self, call: Call, probabilities: object) -> None:
        dtype = self.tags.of(probabilities, "probabilities")
        if dtype is None or not isinstance(probabilities, torch.Tensor) or not is_plain(probabilities):
            return
        with torch.no_grad():
            numbers = probabilities.detach()
            zeros, ones = any_of(numbers == 0), any_of(numbers == 1)
        self.notes.add(
            "probabilities",
            (call.line, call.name),
            {"call": call.name, "dtype": dtype},
            zeros=zeros,
            ones=ones,
        )
