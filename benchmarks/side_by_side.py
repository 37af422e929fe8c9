"""Time several ways to do one thing, side by side: interleaved, in random order, the baseline against itself as well.

A machine gets slower and faster while one measures; what is timed first profits or suffers. So every round times each
way once, in a new random order, and the baseline twice, under two names. How far these two medians lie apart is what
the machine's moods make of nothing: a ratio is no more certain than that.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

AGAIN = " (again)"


@dataclass(frozen=True)
class Finding:
    """One number that a comparison found, and the bar that it should not exceed, if there is one.

    `noise` is how far the baseline lies from itself in the same run, as a ratio; 0 for what is counted, not timed.
    """

    what: str
    number: float
    bar: float | None = None
    noise: float = 0.0
    unit: str = "×"

    @property
    def met(self) -> bool:
        """Whether the number is at most the bar, give or take the noise; without a bar, it is."""
        return self.bar is None or self.number <= self.bar + self.noise

    def __str__(self) -> str:
        bar = "" if self.bar is None else f", bar {self.bar:g}: {'met' if self.met else 'MISSED'}"
        noise = f" (± {self.noise:.3f})" if self.noise else ""
        return f"{self.what:68} {self.number:9.3f} {self.unit}{noise}{bar}"


@dataclass(frozen=True)
class Timings:
    """Seconds of every way, round by round; `seconds` holds the baseline twice."""

    baseline: str
    seconds: Mapping[str, tuple[float, ...]]

    def median(self, way: str) -> float:
        """Return the median seconds of one way."""
        return statistics.median(self.seconds[way])

    def ratio(self, way: str) -> float:
        """Return how many times as long as the baseline one way takes, by medians."""
        return self.median(way) / self.median(self.baseline)

    @property
    def noise(self) -> float:
        """How far from 1 the ratio of the baseline to itself is."""
        return abs(self.ratio(self.baseline + AGAIN) - 1)

    def against(self, way: str, what: str, bar: float | None = None) -> Finding:
        """Return the ratio of one way as a finding, called `what`, to be at most `bar`."""
        return Finding(what, self.ratio(way), bar, self.noise)

    def __str__(self) -> str:
        lines = [
            f"{way:32} {self.median(way) * 1e3:10.4f} ms   {self.ratio(way):6.3f} × {self.baseline}"
            for way in self.seconds
        ]
        return "\n".join(lines)


def side_by_side(
    ways: Mapping[str, Callable[[], object]],
    *,
    baseline: str,
    rounds: int = 500,
    warm_up: int = 10,
    seed: int = 0,
    synchronize: Callable[[], object] = lambda: None,
    prepare: Callable[[str], object] = lambda way: None,
) -> Timings:
    """Time every way `rounds` times.

    Args:
        ways: what to time, by name; each is called with nothing.
        baseline: the name of the way that the others are compared with.
        rounds: how often each is timed; a small step needs at least 500.
        warm_up: how many rounds before that are thrown away.
        seed: of the random order.
        synchronize: called before and after every timed call, such as `torch.cuda.synchronize`.
        prepare: called with the name of the way before each of its calls; its time does not count. The baseline's
            name is the same both times.

    Raises:
        ValueError: if `baseline` is none of `ways`, or there is nothing to time.
    """
    if baseline not in ways:
        raise ValueError(f"baseline={baseline!r} is none of the ways: {', '.join(ways)}")
    if rounds < 1 or warm_up < 0:
        raise ValueError(f"rounds={rounds}, warm_up={warm_up}: there must be at least one round")
    entries = {**ways, baseline + AGAIN: ways[baseline]}
    order, shuffled = list(entries), random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for round_ in range(warm_up + rounds):
        shuffled.shuffle(order)
        for name in order:
            prepare(name.removesuffix(AGAIN))
            taken = _time(entries[name], synchronize)
            if round_ >= warm_up:
                seconds[name].append(taken)
    return Timings(baseline, {name: tuple(each) for name, each in seconds.items()})


def _time(way: Callable[[], object], synchronize: Callable[[], object]) -> float:
    synchronize()
    start = time.perf_counter()
    way()
    synchronize()
    return time.perf_counter() - start


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
