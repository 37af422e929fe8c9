"""What the steps of a script lead to: computed in one process, from the batches that its ranks were seen to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from amp_lab.course.lessons.l10.averaging import averaged_step
from amp_lab.course.lessons.l10.comparing import State
from amp_lab.course.lessons.l10.noting import Seen
from amp_lab.course.lessons.l10.rehearsal import BATCH, RANKS, RATE, SAMPLES, make_data, make_model

_SCALE = 2.0**16  # where a GradScaler begins


class Faults(NamedTuple):
    """What somebody with a misconception does otherwise."""

    clears: int = 1  # gradients, before each so many steps; 0: never
    unscales: bool = True  # and looks for infinities, as a scaler does
    factor: float = 1  # of the mean over the ranks
    region: int = 1  # how many steps stand in one region of autocast, which casts the weights once; 0: all


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
    ("stale-casts", Faults(region=0)),
    ("stale-casts", Faults(region=_EPOCH)),
)


def replay(seen: Sequence[Seen], faults: Faults = Faults()) -> Replay:  # noqa: B008 (it cannot be changed)
    """Make the steps again, each with the gradients of all ranks."""
    model, scale, scales = make_model(), _SCALE, []
    steps = [[each.samples for each in step] for step in zip(*(each.forwards for each in seen), strict=False)]
    length = faults.region or max(len(steps), 1)
    for start in range(0, len(steps), length):
        with _region():
            for step, samples in enumerate(steps[start : start + length], start):
                if faults.clears and step % faults.clears == 0:
                    model.zero_grad()
                passes = [partial(_backward, model, each, scale) for each in samples]
                scale = averaged_step(
                    model, passes, scale, RATE, unscales=faults.unscales, factor=faults.factor
                )
                scales.append(scale)
    return Replay({name: each.detach().clone() for name, each in model.named_parameters()}, scales)


@contextmanager
def _region() -> Iterator[None]:
    """Keep casts of weights until the end, and none from before: a check may itself stand in a region."""
    torch.clear_autocast_cache()
    try:
        with torch.autocast("cpu", torch.float16):
            yield
    finally:
        torch.clear_autocast_cache()


def _backward(model: nn.Module, samples: Sequence[int], scale: float) -> None:
    """Make the passes of one rank in one step."""
    inputs, targets = make_data()
    loss = nn.functional.cross_entropy(model(inputs[list(samples)]), targets[list(samples)])
    (loss * scale).backward()  # type: ignore[no-untyped-call]
