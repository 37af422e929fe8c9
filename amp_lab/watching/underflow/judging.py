"""What FP16 made of a module's gradients in each sample; and where all are zero, whether that can be told.

`pile.py` estimates how many of a gradient's zeros are FP16's, from the numbers beside them. A module whose gradient is
nothing but zeros has no such numbers. A part that is not used, one that is multiplied by zero, and one whose gradient
FP16 lost on the way all look alike. It is taken for lost if something else tells:

- the next module after it, in the order in which the model lists them, whose gradient FP16 rounded and that has
  numbers: what reaches the one has passed the other. If that one loses `NEIGHBOUR` of its numbers or more, or all that
  it has are subnormal, the zeros are their continuation. After the last module that of the sample before decides.
- its own last sample before: if it lost as much there, or all that it had was subnormal, then this goes on.
- its own nearest sample with numbers, at another loss scale: if they would be zeros at this scale.

Otherwise it is `untold`: nobody is accused, and the table says which experiment would tell.

The thresholds, each of which the tests hold from both sides:

- `WORTH`, 5 %: a gradient has lost something worth a word. A spread of numbers far above FP16's edge always has a tail
  below it; losing these smallest 1 or 2 % moves no weight, and 5 % is well above what an estimate from a few ones makes
  of nothing.
- `NEIGHBOUR`, 10 %: in a chain of layers each loses more than the next. Of modules whose next one loses less than
  that, hardly any is zero throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from amp_lab.watching.underflow.pile import from_pile
from amp_lab.watching.underflow.sample import EDGE, NORMAL, Counts, Sample

WORTH: Final = 0.05
NEIGHBOUR: Final = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """What FP16 made of the gradients of a module in one step. Shares are 0 to 1; sizes as FP16 saw them, scaled.

    Attributes:
        entries: how many numbers were counted, of `total`.
        share_zero: which part of them is exactly 0, for whatever reason. Never is more lost than that.
        share_subnormal: which part is not 0 but below 2^-14, where FP16 has fewer than 11 digits.
        share_lost: of the numbers that would not be 0 without rounding: which part FP16 made 0, by estimate, and
            rather too low (`pile.py` says how far).
        smallest, largest: sizes of those that are not 0; NaN if all are.
        scale: the loss scale; 1 without one.
        below: the bulk of the numbers lies below the edge, and how far below cannot be seen.
        untold: all are 0, and nothing tells whether FP16 made them so; `share_lost` is 0 then.
        overflowed: some were infinite or NaN; nothing is said of underflow then.
    """

    module: str
    step: int
    total: int
    entries: int
    share_zero: float
    share_subnormal: float
    share_lost: float
    smallest: float
    largest: float
    scale: float
    below: bool
    untold: bool
    overflowed: bool

    @property
    def all_zero(self) -> bool:
        """Whether every number that was looked at is 0."""
        return self.share_zero == 1


def judge(samples: Iterable[Sample]) -> list[Row]:
    """Return a row for each module of each sample. Reads what is still on a device."""
    rows: list[Row] = []
    at_edge = False
    ended: dict[str, bool] = {}  # whether a module was at the edge in its last sample
    for sample in samples:
        scale = 1.0 if sample.scale is None else sample.scale.value
        counts = sample.read()
        lost, at_edge = _lost(counts, at_edge, ended)
        rows += [_row(sample.step, scale, *each) for each in zip(counts, lost, strict=True)]
    return _by_other_scales(rows)


def _row(step: int, scale: float, counts: Counts, lost: float) -> Row:
    there = counts.nonzero + lost
    return Row(
        counts.module,
        step,
        counts.total,
        counts.entries,
        counts.zeros / counts.entries,
        counts.subnormal / counts.entries,
        lost / there if lost and there else 0.0,
        counts.smallest if counts.nonzero else math.nan,
        counts.largest if counts.nonzero else math.nan,
        scale,
        bool(lost) and lost >= counts.zeros - counts.unused and lost > counts.nonzero,
        counts.zeros == counts.entries and not lost,
        counts.finite < counts.entries,
    )


def _lost(counts: Sequence[Counts], at_edge: bool, ended: dict[str, bool]) -> tuple[list[float], bool]:
    """Estimate for each module, in the model's order, how many numbers FP16 made 0 (see the top of this file).

    `at_edge`: the next module that has numbers which FP16 rounded loses some, or has subnormal ones alone. After the
    last module that is what was true of it in the sample before, which is returned along with the numbers. `ended`
    is the same of each module in its own last sample; it is brought up to date.
    """
    lost: list[float] = []
    last: bool | None = None
    for each in reversed(counts):
        found = 0.0
        if each.finite < each.entries or each.entries == 0:
            pass
        elif each.nonzero == 0:
            found = float(each.zeros) if at_edge or ended.get(each.module, False) else 0.0
        else:
            found = from_pile(each)
            if not each.off_grid:
                share = found / (found + each.nonzero)
                at_edge = share >= NEIGHBOUR or each.largest < NORMAL
                ended[each.module] = at_edge
                last = at_edge if last is None else last
        lost.append(found)
    return lost[::-1], at_edge if last is None else last


def _by_other_scales(rows: list[Row]) -> list[Row]:
    """Settle what is untold by the same module's numbers at another scale, if those would be zeros at this one."""
    numbers: dict[str, list[Row]] = {}
    for row in rows:
        if not row.overflowed and not row.all_zero and row.scale > 0:
            numbers.setdefault(row.module, []).append(row)
    return [_settled(row, numbers.get(row.module, ())) if row.untold else row for row in rows]


def _settled(row: Row, others: Sequence[Row]) -> Row:
    others = [each for each in others if each.scale != row.scale]
    if not others:
        return row
    nearest = min(others, key=lambda each: abs(each.step - row.step))
    if nearest.largest / nearest.scale * row.scale > EDGE / 2:
        return row
    return replace(row, share_lost=1.0, below=True, untold=False)
