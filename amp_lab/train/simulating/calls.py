"""Collective calls, and how they find each other: the k-th call of a rank meets the k-th call of every other.

So do gloo and NCCL: nothing but the order says which calls belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from amp_lab.train.simulating.wire import Wire


@dataclass(eq=False)
class Call:
    """A collective that one rank has joined.

    `what` names it for people: "bucket 2 of step 3"; `label` is short. `bytes` is what the rank hands over. `joined`,
    `start` and `end` are in milliseconds; `start` and `end` are None while other ranks are missing.
    """

    rank: int
    step: int
    kind: str
    what: str
    bytes: int
    value: float
    joined: float
    average: bool = False
    source: int | None = None
    label: str = ""
    start: float | None = None
    end: float | None = None
    result: float = 0.0

    @property
    def words(self) -> str:
        """The call as a sentence names it."""
        return f"{self.kind} of {self.what}" if self.what else self.kind

    def fits(self, other: Call) -> bool:
        """Tell whether a backend would let the two talk, be it by mistake."""
        return (self.kind, self.bytes, self.source) == (other.kind, other.bytes, other.source)


class Calls:
    """All collectives of a run, in the order of each rank."""

    def __init__(self, ranks: int, wire: Wire) -> None:
        self.made: list[list[Call]] = [[] for _ in range(ranks)]
        self.met: list[list[Call]] = []
        self.wire = wire
        self._free = 0.0  # when the network has done the last one

    def join(self, call: Call) -> Call:
        """Let a rank join its next collective."""
        self.made[call.rank].append(call)
        return call

    def pair(self) -> bool:
        """Let the calls that have all their peers happen, one after the other; return whether there was one."""
        before = len(self.met)
        while all(len(made) > len(self.met) for made in self.made):
            calls = [made[len(self.met)] for made in self.made]
            if not all(first.fits(second) for first, second in pairwise(calls)):
                break
            self._happen(calls)
        return len(self.met) > before

    def next(self, rank: int) -> Call | None:
        """Return the first call of a rank that has not happened; None if it waits for none."""
        made = self.made[rank]
        return made[len(self.met)] if len(made) > len(self.met) else None

    def _happen(self, calls: Sequence[Call]) -> None:
        start = max(self._free, *(call.joined for call in calls))
        self._free = start + self.wire.ms(calls[0].bytes, len(calls))
        result = self._result(calls)
        for call in calls:
            call.start, call.end, call.result = start, self._free, result
        self.met.append(list(calls))

    def _result(self, calls: Sequence[Call]) -> float:
        values = [call.value for call in calls]
        if calls[0].source is not None:
            return values[calls[0].source]
        if calls[0].average:
            return self.wire.average(values)
        return sum(values)


def wrong(met: Sequence[Call]) -> bool:
    """Tell calls that met though they were not the same to their ranks."""
    return len({call.what for call in met}) > 1
