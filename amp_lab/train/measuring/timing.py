"""Time several ways to do one thing: interleaved, in random order, the baseline against itself as well.

A machine gets slower and faster while one measures; what is timed first profits or suffers. So every round times each
way once, in a new random order, and the baseline twice, under two names. How far these two medians lie apart is what
the machine's moods make of nothing: a ratio is no more certain than that.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from amp_lab.train.arguments import as_seed, is_whole
from amp_lab.train.measuring.clocks import clock_for

AGAIN = " (again)"


@dataclass(frozen=True)
class Timings:
    """Seconds of every way, round by round; `seconds` holds the baseline twice."""

    baseline: str
    seconds: Mapping[str, tuple[float, ...]]

    def median(self, way: str) -> float:
        """Return the median seconds of one way."""
        return statistics.median(self.seconds[way])

    def spread(self, way: str) -> tuple[float, float]:
        """Return the seconds between which the middle half of one way's rounds lies: its quartiles."""
        each = self.seconds[way]
        if len(each) < 2:
            return each[0], each[0]
        first, _, third = statistics.quantiles(each, n=4, method="inclusive")
        return first, third

    def ratio(self, way: str) -> float:
        """Return how many times as long as the baseline one way takes, by medians.

        Where the baseline takes less than the clock's smallest tick, no ratio is known: NaN.
        """
        baseline = self.median(self.baseline)
        return self.median(way) / baseline if baseline else math.nan

    @property
    def noise(self) -> float:
        """How far from 1 the ratio of the baseline to itself is."""
        return abs(self.ratio(self.baseline + AGAIN) - 1)

    def __str__(self) -> str:
        width = max(32, *map(len, self.seconds))
        return "\n".join(self._line(way, width) for way in self.seconds)

    def _line(self, way: str, width: int) -> str:
        first, third = (1e3 * each for each in self.spread(way))
        return (
            f"{way:{width}} {1e3 * self.median(way):10.4f} ms  (half of them {first:.4g} to {third:.4g})  "
            f"{self.ratio(way):6.3f} × {self.baseline}"
        )


def compare(
    ways: Mapping[str, Callable[[], object]],
    *,
    baseline: str,
    rounds: int = 500,
    warm_up: int = 10,
    seed: int = 0,
    device: str | torch.device | None = None,
    prepare: Callable[[str], object] = lambda way: None,
) -> Timings:
    """Time every way `rounds` times.

        print(compare({"FP32": step, "AMP": amp_step}, baseline="FP32"))

    Args:
        ways: what to time, by name; each is called with nothing.
        baseline: the name of the way that the others are compared with.
        rounds: how often each is timed; a small step needs at least 500.
        warm_up: how many rounds before that are thrown away. First calls choose kernels, fill caches, reserve memory.
        seed: of the random order.
        device: "cuda" for the GPU's own clock (CUDA events); None for the CPU's, which waits for the GPU as well.
        prepare: called with the name of the way before each of its calls; its time does not count. The baseline's
            name is the same both times.

    Raises:
        TypeError, ValueError: if `baseline` is none of `ways`, or there is nothing to time, or no such device.
        Whatever a way raises, with a note which one it was.
    """
    _check(ways, baseline, rounds, warm_up)
    clock = clock_for(device)
    entries = {**ways, baseline + AGAIN: ways[baseline]}
    order, shuffled = list(entries), random.Random(as_seed("compare", seed))
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for round_ in range(warm_up + rounds):
        shuffled.shuffle(order)
        for name in order:
            try:
                prepare(name.removesuffix(AGAIN))
                taken = clock(entries[name])
            except Exception as error:
                error.add_note(f"compare was timing {name!r}, in round {round_ + 1} of {warm_up + rounds}")
                raise
            if round_ >= warm_up:
                seconds[name].append(taken)
    return Timings(baseline, {name: tuple(each) for name, each in seconds.items()})


def _check(ways: Mapping[str, Callable[[], object]], baseline: str, rounds: int, warm_up: int) -> None:
    if not isinstance(ways, Mapping) or not all(isinstance(name, str) for name in ways):
        raise TypeError('ways is a dict of what to call by name, such as {"FP32": step, "AMP": amp_step}')
    if baseline not in list(ways):
        raise ValueError(f"baseline={baseline!r} is none of the ways: {', '.join(ways) or 'there are none'}")
    if not is_whole(rounds) or not is_whole(warm_up) or rounds < 1 or warm_up < 0:
        raise ValueError(
            f"rounds={rounds}, warm_up={warm_up}: whole numbers, and there must be at least one round"
        )
    for name, way in ways.items():
        if not callable(way):
            raise TypeError(
                f"ways[{name!r}] is a {type(way).__name__}: give what is to be called, such as lambda: step(batch)"
            )
        if name.endswith(AGAIN):
            raise ValueError(
                f"ways[{name!r}]: names that end in {AGAIN!r} are for the baseline's second turn"
            )
