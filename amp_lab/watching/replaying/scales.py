"""Which loss scales a batch bears: tried one after the other, and then the largest power of two that cures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from amp_lab.watching.replaying.records import Replay

SMALLEST: Final = 2.0**-24  # below, what FP16 can hold at all is lost


class Tried(NamedTuple):
    """The replays, in order, and the largest power of two at which a batch is finite; None if there is none."""

    replays: tuple[Replay, ...]
    cure: float | None

    @property
    def first_bad(self) -> Replay | None:
        return next((each for each in self.replays if not each.finite), None)


def tried(run: Callable[[float], Replay], scales: Sequence[float], smallest: float = SMALLEST) -> Tried:
    """Run a batch at the scales, largest first, until it is finite; then search for the largest scale that cures.

    A batch that is finite at one scale is so at all smaller ones, and a loss that is not finite stays so: neither is
    run again. Where all the scales overflow, the search goes on down to `smallest`.
    """
    replays: list[Replay] = []

    def finite(scale: float) -> bool:
        replays.append(run(scale))
        return replays[-1].finite

    bad: float | None = None
    for scale in sorted(set(scales), reverse=True):
        if finite(scale):
            cure = scale if bad is None else _largest(finite, scale, bad)
            return Tried(tuple(replays), cure)
        if not math.isfinite(replays[-1].loss):
            return Tried(tuple(replays), None)
        bad = scale
    assert bad is not None
    if bad <= smallest or not finite(smallest):
        return Tried(tuple(replays), None)
    cure = _largest(finite, smallest, bad)
    return Tried(tuple(replays), cure)


def _largest(finite: Callable[[float], bool], good: float, bad: float) -> float:
    """Return the largest power of two between a scale that is fine and one that is not, by halving the distance."""
    low, high = math.ceil(math.log2(good)), math.ceil(math.log2(bad))
    if 2.0**low != good and (low >= high or not finite(2.0**low)):
        low -= 1  # the power of two below
    while high - low > 1:
        middle = (low + high) // 2
        if finite(2.0**middle):
            low = middle
        else:
            high = middle
    return 2.0**low
