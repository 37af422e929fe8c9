"""The loss scale that keeps what FP16 made zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from amp_lab.watching.underflow.judging import WORTH, Row

_ROOM: Final = 65504 / 2  # the largest gradient may grow to twice its size
_KEPT: Final = 0.01  # of a module's gradients may be lost
_SUBNORMAL: Final = 2.0**10  # carries FP16's smallest number to its smallest normal one
_MOST: Final = 2.0**16  # times the present scale: GradScaler's own beginning


def scale_for(rows: Iterable[Row]) -> float | None:
    """Return the power of two that keeps what is lost and leaves room above (see `Underflow.scale`)."""
    rows = [row for row in rows if row.scale > 0]
    losing = [row for row in rows if row.share_lost >= WORTH]
    if not losing:
        return next((row.scale for row in reversed(rows) if not row.overflowed), None)
    allowed = _room(rows, max(row.scale for row in losing))
    needed = max(_needed(row) for row in losing)
    if needed > allowed:
        return None
    whole = [row.scale for row in losing if row.below]
    return max(needed, min(allowed, _power(max(whole) * _MOST))) if whole else needed


def scale_to_try(rows: Iterable[Row]) -> float | None:
    """Return the largest power of two that leaves room, up to 2^16 times the present scale; None where none does."""
    rows = [row for row in rows if row.scale > 0]
    present = next((row.scale for row in reversed(rows) if not row.overflowed), None)
    if present is None:
        return None
    found = min(_room(rows, present), _power(present * _MOST))
    return found if found > present else None


def _room(rows: Sequence[Row], present: float) -> float:
    """Return the largest power of two with room above it, in all samples; below larger scales that overflowed."""
    passed = [_power(row.scale) / 2 for row in rows if row.overflowed and row.scale > present]
    return min([_allowed(row) for row in rows if not row.overflowed] + passed)


def _allowed(row: Row) -> float:
    """Return the largest power of two at which a module's largest gradient leaves room."""
    return math.inf if math.isnan(row.largest) else _power(_ROOM / (row.largest / row.scale))


def _needed(row: Row) -> float:
    """Return the power of two at which the edge is left: with it the density there sinks as the scale grows."""
    factor = _SUBNORMAL if row.below else row.share_lost / _KEPT
    return math.ldexp(1.0, math.ceil(math.log2(factor * row.scale)))


def _power(number: float) -> float:
    return math.ldexp(1.0, math.frexp(number)[1] - 1)
