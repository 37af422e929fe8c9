"""Telling gradients that nobody has touched from those that were replaced or written to."""

from __future__ import annotations

import weakref

import torch

from amp_lab.scaling.unscaling import gradients


class Marks:
    """Which gradients an optimizer had at one moment, and how often each had been written to. Keeps none of them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._marks = {
            id(gradient): (weakref.ref(gradient), gradient._version)
            for _, _, _, gradient in gradients(optimizer)
        }

    def changed(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return the gradients that are new since then, or were written to."""
        return [gradient for _, _, _, gradient in gradients(optimizer) if not self._know(gradient)]

    def hold(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the optimizer has all the gradients of then, as they were, and no others."""
        now = [gradient for _, _, _, gradient in gradients(optimizer)]
        return len(now) == len(self._marks) and all(map(self._know, now))

    def _know(self, gradient: torch.Tensor) -> bool:
        # An id alone could be that of a gradient long gone.
        reference, version = self._marks.get(id(gradient), (None, 0))
        return reference is not None and reference() is gradient and gradient._version == version
