"""Which tensors show weights that are trained."""

from __future__ import annotations

import torch

from amp_lab.watching.recording.looks.calls import is_plain
from amp_lab.watching.recording.looks.look import Bench


class Weights:
    """Knows the parameters of the watched optimizers by where their numbers lie, for the length of a step."""

    def __init__(self, bench: Bench):
        self._bench, self._step = bench, 0
        self._shapes: dict[int, torch.Size] = {}

    def has(self, tensor: object) -> bool:
        """Return whether a tensor shows a parameter: itself, its `.data`, or as a state dict has it."""
        if not isinstance(tensor, torch.Tensor) or not is_plain(tensor) or tensor.numel() == 0:
            return False
        if self._step != self._bench.step or not self._shapes:
            self._step, self._shapes = self._bench.step, self._read()
        return self._shapes.get(tensor.data_ptr()) == tensor.shape

    def _read(self) -> dict[int, torch.Size]:
        return {
            each.data_ptr(): each.shape
            for number in range(len(self._bench.optimizers))
            for each in self._bench.parameters(number)
            if is_plain(each)
        }
