"""What all ranks of a step do together, computed in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

Passes = Callable[[], None]  # makes the backward passes of one rank


def averaged_step(
    model: nn.Module,
    ranks: Sequence[Passes],
    scale: float,
    rate: float,
    *,
    unscales: bool = True,
    factor: float = 1,
) -> float:
    """Make a step of SGD with the mean gradients of all ranks, times `factor`; return the scale after it.

    Each rank begins with what `.grad` holds. Where the step is left out, because a gradient is not finite, the scale is
    halved. Without `unscales` the step is made by an optimizer that knows nothing of a scale.
    """
    gradients = [factor * each for each in _mean_gradients(model, ranks)]
    finite = all(bool(each.isfinite().all()) for each in gradients)
    for each, gradient in zip(model.parameters(), gradients, strict=True):
        each.grad = gradient / scale if unscales else gradient
        if finite or not unscales:
            each.data -= rate * each.grad
    return scale if finite or not unscales else scale / 2


def _mean_gradients(model: nn.Module, ranks: Sequence[Passes]) -> list[torch.Tensor]:
    before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    of_ranks = []
    for make_passes in ranks:
        for each, old in zip(model.parameters(), before, strict=True):
            each.grad = None if old is None else old.clone()
        make_passes()
        of_ranks.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return [torch.stack(each).mean(dim=0) for each in zip(*of_ranks, strict=True)]
