"""Weights that were cast to 16 bits and back while they were trained."""

from __future__ import annotations

import torch

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.looks.calls import HALVES, is_plain
from amp_lab.watching.recording.looks.look import Look
from amp_lab.watching.recording.looks.noting import any_of

_NUMBERS = 64


class CastsOfWeights(Look):
    """Notes "weights rounded": they are wider again, and hold the digits of 16 bits only.

    Who had kept the FP32 weights, and has loaded them again, has lost nothing.
    """

    _half: torch.dtype | None = None

    def forward(self) -> None:
        first = self._first()
        if first is None:
            return
        if (dtype := first.dtype) in HALVES:
            self._half = dtype
        elif self._half is not None:
            half, self._half = self._half, None
            if is_plain(first):
                self._compare(first, half)

    def _first(self) -> torch.Tensor | None:
        """Return the first parameter of the first optimizer."""
        for group in self.bench.optimizers[0].param_groups if self.bench.optimizers else ():
            if group["params"]:
                parameter: torch.Tensor = group["params"][0]
                return parameter
        return None

    def _compare(self, weight: torch.Tensor, half: torch.dtype) -> None:
        with torch.no_grad():
            sample = weight.detach().flatten()[:_NUMBERS]
            kept = any_of(sample.to(half).to(sample.dtype) != sample)
        if not kept.known or not kept.value:
            values = {"from": half, "to": weight.dtype, "seen": [{"kept": kept}]}
            self.bench.emit(Noticed, what="weights rounded", values=values)
