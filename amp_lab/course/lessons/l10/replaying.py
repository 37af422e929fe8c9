"""What the steps of a script lead to: computed in one process, from the batches that its ranks were seen to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from amp_lab.course.lessons.l10.rehearsal import RATE, Seen, State, make_data, make_model

_SCALE = 2.0**16  # where a GradScaler begins


class Faults(NamedTuple):
    """What somebody with a misconception does otherwise."""

    clears: bool = True
    unscales: bool = True  # and looks for infinities, as a scaler does
    averages: bool = True  # or adds


class Replay(NamedTuple):
    """The weights in the end, and the scale after each step."""

    weights: State
    scales: list[float]


# The first that leads to the same weights is told.
MISCONCEPTIONS = (
    ("never-clears", Faults(clears=False)),
    ("passes-by", Faults(unscales=False)),
    ("passes-by", Faults(unscales=False, clears=False)),
    ("adds-ranks", Faults(averages=False)),
)


def replay(seen: Sequence[Seen], faults: Faults = Faults()) -> Replay:  # noqa: B008 (it cannot be changed)
    """Make the steps again, each with the gradients of all ranks."""
    model, scale, scales = make_model(), _SCALE, []
    for samples in zip(*(each.forwards for each in seen), strict=False):
        gradients = _gradients(model, [forward.samples for forward in samples], scale, faults)
        finite = all(bool(each.isfinite().all()) for each in gradients)
        for each, gradient in zip(model.parameters(), gradients, strict=True):
            each.grad = gradient / scale if faults.unscales else gradient
            if finite or not faults.unscales:
                each.data -= RATE * each.grad
        scale = scale if finite else scale / 2
        scales.append(scale)
    return Replay({name: each.detach().clone() for name, each in model.named_parameters()}, scales)


def _gradients(
    model: nn.Module, batches: Sequence[tuple[int, ...]], scale: float, faults: Faults
) -> list[torch.Tensor]:
    """Return the scaled gradients of a step of all ranks."""
    inputs, targets = make_data()
    before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    of_ranks = []
    for samples in batches:
        for each, old in zip(model.parameters(), before, strict=True):
            each.grad = None if faults.clears or old is None else old.clone()
        with torch.autocast("cpu", torch.float16, cache_enabled=False):  # weights change in an outer region
            loss = nn.functional.cross_entropy(model(inputs[list(samples)]), targets[list(samples)])
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        of_ranks.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    stacked = [torch.stack(each) for each in zip(*of_ranks, strict=True)]
    return [each.mean(dim=0) if faults.averages else each.sum(dim=0) for each in stacked]
