"""What the steps of a script lead to: computed in one process, from the batches that its ranks were seen to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from amp_lab.course.lessons.l10.comparing import State
from amp_lab.course.lessons.l10.noting import Seen
from amp_lab.course.lessons.l10.rehearsal import BATCH, RANKS, RATE, SAMPLES, make_data, make_model

_SCALE = 2.0**16  # where a GradScaler begins


class Faults(NamedTuple):
    """What somebody with a misconception does otherwise."""

    clears: int = 1  # gradients, before each so many steps; 0: never
    unscales: bool = True  # and looks for infinities, as a scaler does
    factor: float = 1  # of the mean over the ranks


class Replay(NamedTuple):
    """The weights in the end, and the scale after each step."""

    weights: State
    scales: list[float]


_EPOCH = -(-SAMPLES // RANKS // BATCH)  # steps
# The first that leads to the same weights, and scales, is told.
MISCONCEPTIONS = (
    ("never-clears", Faults(clears=0)),
    ("never-clears", Faults(clears=_EPOCH)),
    ("passes-by", Faults(unscales=False)),
    ("passes-by", Faults(unscales=False, clears=0)),
    ("adds-ranks", Faults(factor=RANKS)),
    ("divides-by-ranks", Faults(factor=1 / RANKS)),
)


def replay(seen: Sequence[Seen], faults: Faults = Faults()) -> Replay:  # noqa: B008 (it cannot be changed)
    """Make the steps again, each with the gradients of all ranks."""
    model, scale, scales = make_model(), _SCALE, []
    for step, samples in enumerate(zip(*(each.forwards for each in seen), strict=False)):
        if faults.clears and step % faults.clears == 0:
            model.zero_grad()
        gradients = _gradients(model, [forward.samples for forward in samples], scale, faults.factor)
        finite = all(bool(each.isfinite().all()) for each in gradients)
        for each, gradient in zip(model.parameters(), gradients, strict=True):
            each.grad = gradient / scale if faults.unscales else gradient
            if finite or not faults.unscales:
                each.data -= RATE * each.grad
        scale = scale if finite else scale / 2
        scales.append(scale)
    return Replay({name: each.detach().clone() for name, each in model.named_parameters()}, scales)


def _gradients(
    model: nn.Module, batches: Sequence[tuple[int, ...]], scale: float, factor: float
) -> list[torch.Tensor]:
    """Return the scaled gradients of a step, averaged over the ranks, with those that were there before."""
    inputs, targets = make_data()
    before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    of_ranks = []
    for samples in batches:
        for each, old in zip(model.parameters(), before, strict=True):
            each.grad = None if old is None else old.clone()
        with torch.autocast("cpu", torch.float16, cache_enabled=False):  # weights change in an outer region
            loss = nn.functional.cross_entropy(model(inputs[list(samples)]), targets[list(samples)])
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        of_ranks.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return [torch.stack(each).mean(dim=0) * factor for each in zip(*of_ranks, strict=True)]
