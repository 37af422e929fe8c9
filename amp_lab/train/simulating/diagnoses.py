"""What went wrong between ranks, in words: ranks that wait for ever, and calls that met by mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amp_lab.train.simulating.calls import Call

_HANG = (
    "In real life the job stands still until the process group's timeout (30 minutes for gloo, 10 for NCCL, unless you "
    "set it), with gloo at most until the process of an ended rank is gone. The error that comes then names neither "
    "the line nor the decision that led there"
)
_MISMATCH = (
    "In real life the order alone says which calls belong together. gloo waits until the timeout, or ends the process "
    '("Received data size doesn\'t match expected size"); NCCL promises nothing: a hang, a crash or wrong numbers'
)
_RULE = "Let every rank make the same collective calls in the same order"


@dataclass(frozen=True)
class Deadlock:
    """Ranks that wait for each other for ever.

    `waits` says of every rank what it waits in, None if it has ended; `since` is when each came to a halt, in
    milliseconds.
    """

    waits: tuple[str | None, ...]
    since: tuple[float, ...]

    @property
    def ranks(self) -> list[int]:
        """The ranks that wait."""
        return [rank for rank, wait in enumerate(self.waits) if wait is not None]

    @property
    def mismatch(self) -> bool:
        """Whether all ranks wait, and in calls that do not go together; else some have ended."""
        return None not in self.waits

    def __str__(self) -> str:
        each = "; ".join(
            f"rank {rank} has ended" if wait is None else f"rank {rank} waits in {wait}"
            for rank, wait in enumerate(self.waits)
        )
        return f"Deadlock: {each}.\n{_MISMATCH if self.mismatch else _HANG}.\n{_RULE}: {self._advice}."

    @property
    def _advice(self) -> str:
        if self.mismatch:
            return "what only some ranks call stands in an `if` that only they enter: take it out, or take all in"
        return (
            "give all ranks the same number of batches, and take every decision to leave something out together, by an "
            "all-reduce of the flag"
        )


@dataclass(frozen=True)
class Mispairing:
    """Calls that met though ranks meant different ones: same kind, same size, so no error tells of it.

    `means` says of every rank what it meant; `start` is when they met, in milliseconds.
    """

    means: tuple[str, ...]
    start: float

    def __str__(self) -> str:
        each = "; ".join(f"rank {rank} means {what}" for rank, what in enumerate(self.means))
        return f"Wrong pairing: {each}. They fit in kind and size, so they were taken for one, and no error tells of it"


def mispairing(calls: Sequence[Call]) -> Mispairing:
    """Describe calls that met by mistake, one of each rank."""
    start = calls[0].start
    assert start is not None
    return Mispairing(tuple(call.words for call in calls), start)
