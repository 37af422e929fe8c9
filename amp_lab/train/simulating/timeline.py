"""What comes out of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from amp_lab.scaling.rule import shown
from amp_lab.train.simulating.diagnoses import Deadlock, Mispairing
from amp_lab.train.simulating.events import Event
from amp_lab.train.simulating.wire import MB
from amp_lab.view.ddp_timeline import ddp_timeline


@dataclass(frozen=True)
class Timeline:
    """What every rank did, and what became of its numbers. `print` it, or `plot` it.

    `scales` holds for each rank the loss scale at the start and after each `Update`; `skipped` a bool for each of its
    steps; `weights` one number for each bucket; `payload` the bytes that a rank gave to all-reduce (the most of all
    ranks), `all_reduces` how many of them happened. `deadlock` is None if all ranks came to their end; `mispaired`
    lists calls that met by mistake.
    """

    events: tuple[Event, ...] = field(repr=False)
    scales: tuple[tuple[float, ...], ...]
    skipped: tuple[tuple[bool, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    payload: int
    all_reduces: int
    deadlock: Deadlock | None
    mispaired: tuple[Mispairing, ...]

    @property
    def seconds(self) -> float:
        """The time until the last rank had ended, or come to a halt."""
        return max((event.end for event in self.events), default=0.0) / 1e3

    @property
    def waited(self) -> list[float]:
        """For each rank the seconds that it waited for others or for the network; not those of a deadlock."""
        return [self._total(rank, "wait") for rank in range(len(self.scales))]

    @property
    def scales_equal(self) -> bool:
        """Whether all ranks have had the same loss scales."""
        return len(set(self.scales)) == 1

    @property
    def weights_equal(self) -> bool:
        """Whether all ranks have ended with the same weights; those of a diverged run, NaN, count as equal."""
        return len({repr(weights) for weights in self.weights}) == 1

    def plot(self, title: str | None = None) -> Figure:
        """Draw it: two rows for each rank, what it did itself and what its network did meanwhile."""
        stuck = self.deadlock
        halted = {} if stuck is None else dict(enumerate(zip(stuck.since, stuck.waits, strict=True)))
        return ddp_timeline(self.events, len(self.scales), halted, title or self._headline)

    def __str__(self) -> str:
        rows = [self._headline, *(self._row(rank) for rank in range(len(self.scales)))]
        if not self.scales_equal:
            rows.append("The loss scales of the ranks have drifted apart.")
        if not self.weights_equal:
            rows.append("The weights of the ranks differ: they train several models, and not one.")
        rows += _first_of(self.mispaired)
        return "\n".join(rows if self.deadlock is None else [*rows, str(self.deadlock)])

    @property
    def _headline(self) -> str:
        ranks, steps = len(self.scales), max(map(len, self.skipped))
        words = f"{_count(ranks, 'rank')}, {_count(steps, 'step')}, {_number(1e3 * self.seconds)} ms"
        words += f", {_count(self.all_reduces, 'all-reduce')}"
        if self.deadlock is None:
            return f"{words}, {_size(self.payload)} from each rank"
        return f"{words}, up to {_size(self.payload)} each, then a deadlock"

    def _row(self, rank: int) -> str:
        steps = " ".join("skipped" if skip else "done" for skip in self.skipped[rank])
        scales = " → ".join(map(shown, _changes(self.scales[rank])))
        waited = f"waited {_number(1e3 * self.waited[rank])} ms"
        return f"rank {rank}: steps {steps or 'none'}; loss scale {scales}; {waited}"

    def _total(self, rank: int, kind: str) -> float:
        mine = (event for event in self.events if event.rank == rank and event.kind == kind)
        return sum(event.end - event.start for event in mine) / 1e3


def _changes(scales: Sequence[float]) -> list[float]:
    return [scale for place, scale in enumerate(scales) if place == 0 or scale != scales[place - 1]]


def _first_of(mispaired: Sequence[Mispairing]) -> list[str]:
    if not mispaired:
        return []
    more = f" (and {len(mispaired) - 1:,} more such pairs)" if len(mispaired) > 1 else ""
    return [f"{mispaired[0]}{more}."]


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _size(size: int) -> str:
    return f"{_number(size / MB)} MB" if size >= MB / 100 else _count(size, "byte")


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:,.4g}"
