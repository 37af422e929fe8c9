"""Telling gradients that nobody has touched from those that were replaced or written to."""

from __future__ import annotations

import weakref

import torch


class Marks:
    """Which gradients an optimizer had at one moment, and how often each had been written to. Keeps none of them.

    Made in every step of a fused optimizer, so it is made to be quick.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = _gradients(optimizer)
        self._references = list(map(weakref.ref, gradients))
        self._versions = [gradient._version for gradient in gradients]

    def hold(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the optimizer has all the gradients of then, as they were, and no others."""
        return len(_gradients(optimizer)) == len(self._references) and not self.changed(optimizer)

    def changed(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Return the gradients that are new since then, or were written to."""
        then = [reference() for reference in self._references]
        versions = {id(gradient): version for gradient, version in zip(then, self._versions, strict=True)}
        return [now for now in _gradients(optimizer) if versions.get(id(now)) != now._version]


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
