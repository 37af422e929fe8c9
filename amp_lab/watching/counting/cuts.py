"""Where a number format cuts the numbers: what becomes zero, what stays normal, what no longer fits."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from amp_lab import formats
from amp_lab.formats import Format

# Gradients come in FP32 or less. A format with more bits than these would lose none of them.
_MOST_BITS: Final = 16
_FORMATS: Final = {each.dtype: each for each in formats.ALL if each.dtype and each.bits <= _MOST_BITS}


@dataclass(frozen=True)
class Cut:
    """A size that parts the numbers in two; `inclusive` says whether it belongs to the upper part itself."""

    size: float
    inclusive: bool

    @property
    def power(self) -> int:
        """e of size = 2^e × 1.fraction."""
        return math.frexp(self.size)[1] - 1

    def carry(self, fraction_bits: int) -> int:
        """Return what must be added to a fraction for it to carry into the exponent exactly from the cut on.

        With it added, the numbers 2^power × 1.fraction of the upper part, and of the lower part none, have an exponent
        above `power`. That stays so if numbers and cut are multiplied by a power of two, which no fraction notices.
        So exponents alone, counted once, tell for every such factor how many numbers are above the cut.
        """
        fraction = int(math.ldexp(math.ldexp(self.size, -self.power) - 1, fraction_bits))
        return (1 << fraction_bits) - fraction - (0 if self.inclusive else 1)


class Cuts(NamedTuple):
    """The three places at which rounding to a format changes the kind of number that comes out."""

    nonzero: Cut
    normal: Cut
    overflow: Cut


def format_of(dtype: torch.dtype) -> Format:
    """Return the number format of a dtype of at most 16 bits.

    Raises:
        TypeError: for what is no dtype.
        ValueError: for a dtype that is wider, or whose format is not in `amp_lab.formats`.
    """
    names = ", ".join(map(str, _FORMATS))
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype={dtype!r}: dtype is the torch.dtype to look at, one of {names}")
    if dtype not in _FORMATS:
        raise ValueError(f"dtype={dtype}: what a gradient becomes can be said of {names}")
    return _FORMATS[dtype]


@functools.cache
def cuts_of(format: Format) -> Cuts:
    """Return where a format cuts. A number half-way between two of the format goes to the even one (IEEE 754, 4.3.1).

    Half the smallest subnormal number is a tie with zero, which is even. The tie below the smallest normal number goes
    up to that, whose fraction is 0. Half a step beyond the largest number is a tie with what would come next: in IEEE's
    formats the largest number is odd, and the tie goes to infinity; E4M3's 448 is even, and keeps its tie.
    """
    largest, smallest_normal, smallest, _ = format.limits
    number = torch.tensor(largest, dtype=torch.float64, device="cpu")  # whatever the default device is
    half_step = format.ulp(number).item() / 2
    largest_is_odd = bool((format.encode(number) & 1).item())
    return Cuts(
        nonzero=Cut(smallest / 2, inclusive=False),
        normal=Cut(smallest_normal - smallest / 2, inclusive=True),
        overflow=Cut(largest + half_step, inclusive=largest_is_odd),
    )
