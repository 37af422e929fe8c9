"""How many of a gradient's zeros FP16 has made, and how many were zeros before.

A zero does not say where it comes from. A ReLU that is off, a row of an embedding whose word is not in the batch, a
mask: they give exact zeros in FP32, too. But FP16 rounds, and rounding leaves a trace beside its zeros. What it rounds
is a multiple of 2^-24, its smallest number; sizes up to half of that become 0, those from there to one and a half times
become 2^-24 itself, and so on. If numbers were lost below the edge, others lie just above it, in a pile of exactly
2^-24 and its small multiples. So:

1. A gradient with a nonzero number below 2^-14 that is *no* multiple of 2^-24 was not rounded by FP16: a normalising
   layer, whose gradient is computed in FP32. None of its zeros are counted.
2. From the pile one estimates what is below. In units of 2^-24, the density of sizes is known at 1 (`ones`, over a
   range one unit wide), at 2.5 (`twos`, two units wide) and at 5.5 (`fours`, four units). Its logarithm is continued to
   0.25, the middle of the half unit that becomes zero, with the slope that it has between 2.5 and 1, or a steeper
   one if it grows steeper from 5.5 on. Far below the bulk of the gradients, sizes are spread evenly: then the three are
   equal, and half as many are lost as there are ones. No estimate is larger than the zeros that there are.
3. Where the largest number is at most 2^-19, 32 units, the bulk lies at or below the edge, and all zeros are
   taken for lost: whichever of them were zeros before, this module loses most of what it should learn.
4. A gradient far above the edge has no ones: none of its zeros is underflow.
5. A module whose gradient is nothing but zeros has no pile. It is judged by the next module after it, in the order in
   which the model lists them, whose gradient FP16 rounded and that has numbers: what reaches the one has passed
   the other. If that one loses numbers, or all that it has are subnormal, the zeros of this are its continuation;
   else this
   module is unused, or its zeros are those of a product with zero. After the last module the sample before decides.

The estimate is one of how many, not of which, and rather too low: what was lost on the way, in the gradients of the
layers' outputs, leaves only the zeros of whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from amp_lab.watching.underflow.sample import NORMAL, Counts, Sample

WORTH: Final = 0.05  # the share of a module's gradients whose loss is worth a word
_FEW: Final = 8  # numbers: fewer say nothing
_AT_THE_EDGE: Final = 2.0**-19
_NEIGHBOUR: Final = 0.1  # the share lost in the next module that makes a module of zeros its continuation


@dataclass(frozen=True, slots=True)
class Row:
    """What FP16 made of the gradients of a module in one step. Shares are 0 to 1; sizes as FP16 saw them, scaled.

    Attributes:
        entries: how many numbers were counted, of `total`.
        share_zero: which part of them is exactly 0, for whatever reason.
        share_subnormal: which part is not 0 but below 2^-14, where FP16 has fewer than 11 digits.
        share_lost: of the numbers that would not be 0 without rounding: which part FP16 made 0, by estimate.
        smallest, largest: sizes of those that are not 0; NaN if all are.
        scale: the loss scale; 1 without one.
        below: the bulk of the numbers lies below the edge, and how far below cannot be seen.
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
    overflowed: bool


def judge(samples: Iterable[Sample]) -> list[Row]:
    """Return a row for each module of each sample. Reads what is still on a device."""
    rows: list[Row] = []
    at_edge = False
    for sample in samples:
        scale = 1.0 if sample.scale is None else sample.scale.value
        counts = sample.read()
        lost, at_edge = _lost(counts, at_edge)
        rows += [_row(sample.step, scale, *each) for each in zip(counts, lost, strict=True)]
    return rows


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
        bool(lost) and lost == counts.zeros and lost > counts.nonzero,
        counts.finite < counts.entries,
    )


def _lost(counts: Sequence[Counts], at_edge: bool) -> tuple[list[float], bool]:
    """Estimate for each module, in the model's order, how many numbers FP16 made 0 (see the top of this file).

    `at_edge`: the next module that has numbers which FP16 rounded loses some, or has subnormal ones alone. After the
    last module that is what was true of it in the sample before, which is returned along with the numbers.
    """
    lost: list[float] = []
    last: bool | None = None
    for each in reversed(counts):
        if each.finite < each.entries or each.entries == 0:
            found = 0.0
        elif each.nonzero == 0:
            found = float(each.zeros) if at_edge else 0.0
        else:
            found = from_pile(each)
            if not each.off_grid:
                share = found / (found + each.nonzero)
                at_edge = share >= _NEIGHBOUR or each.largest < NORMAL
                last = at_edge if last is None else last
        lost.append(found)
    return lost[::-1], at_edge if last is None else last


def from_pile(counts: Counts) -> float:
    """Estimate from the numbers just above the edge how many became 0 below it."""
    if counts.off_grid:
        return 0.0
    if counts.largest <= _AT_THE_EDGE:
        return float(counts.zeros)
    if counts.ones < _FEW:
        return 0.0
    return min(0.5 * _density_below(counts), float(counts.zeros))


def _density_below(counts: Counts) -> float:
    """Continue the density of sizes to 0.25 · 2^-24."""
    at_one, at_two, at_four = (
        math.log(max(count, 0.5) / width)
        for count, width in ((counts.ones, 1), (counts.twos, 2), (counts.fours, 4))
    )
    slope, before = (at_one - at_two) / 1.5, (at_two - at_four) / 3.0  # at 1.75 and 4
    steeper = slope / before if slope > 0 and before > 0 else 1.0
    power = min(max(math.log(steeper) / math.log(4 / 1.75), 0.0), 1.0)
    slope *= (1.75 / 0.625) ** power  # at 0.625
    return math.exp(min(at_one + 0.75 * slope, 700.0))
