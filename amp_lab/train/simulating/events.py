"""What a timeline is made of."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """Something that a rank did, from `start` to `end`, in milliseconds; `step` is counted from 0.

    `kind` is "forward", "backward", "wait" … for what the rank itself did, and "all-reduce", "broadcast", "barrier" or
    "wrong pairing" for what its network did meanwhile. `what` says more: the bucket that was sent, with "∞" or "NaN" if
    its average is none; the same sign for a backward; the new scale for an update that changed it.
    """

    rank: int
    kind: str
    what: str
    start: float
    end: float
    step: int
