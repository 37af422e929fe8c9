"""One number that a comparison found, and the bar that it should meet."""

from __future__ import annotations

from dataclasses import dataclass

from amp_lab.train.measure import Timings


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


def against(timings: Timings, way: str, what: str, bar: float | None = None) -> Finding:
    """Return the ratio of one way to the baseline as a finding, called `what`, to be at most `bar`."""
    return Finding(what, timings.ratio(way), bar, timings.noise)
