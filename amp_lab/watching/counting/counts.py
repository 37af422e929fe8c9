"""Gradients counted by size, in one pass and a few megabytes, finely enough to be rounded at every scale afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from amp_lab.watching.counting.bits import Layout, Reader
from amp_lab.watching.counting.cuts import Cuts

# Powers of two that FP64 reaches, and so all others: 2^-1074 to 2^1023, and one more for a carry.
LOWEST: Final = -1074
HIGHEST: Final = 1024


def _no_rows() -> torch.Tensor:
    return torch.zeros(1 + len(Cuts._fields), HIGHEST - LOWEST + 1, dtype=torch.int64, device="cpu")


@dataclass(eq=False)
class Tally:
    """Gradients counted by size.

    Column i of `rows` stands for the power of two `lowest + i`. Row 0 counts the finite nonzero gradients by the power
    of two that their size begins with. The other rows, one for each cut of the format, count the same gradients after
    the cut's carry (see `Cut.carry`).
    """

    entries: int = 0
    zeros: int = 0
    infinite: int = 0
    nan: int = 0
    largest: float = 0.0
    rows: torch.Tensor = field(default_factory=_no_rows)
    lowest: int = LOWEST

    def place(self, by_field: torch.Tensor, layout: Layout) -> None:
        """Take the rows from counts by exponent field. Of the first row the last field is left out: inf and NaN."""
        first = 1 - layout.bias - LOWEST
        self.rows[:, first : first + layout.fields - 1] = by_field[: len(self.rows), 1:]
        self.rows[0, first + layout.fields - 2] = 0

    def add(self, other: Tally) -> None:
        """Count the gradients of another tally, too."""
        self.entries += other.entries
        self.zeros += other.zeros
        self.infinite += other.infinite
        self.nan += other.nan
        self.largest = max(self.largest, other.largest)
        self.rows += other.rows

    def above(self, row: int, power: int) -> int:
        """Return how many gradients a row counts above a power of two's column."""
        return int(self.rows[row, max(0, power + 1 - self.lowest) :].sum())

    def trimmed(self) -> Tally:
        """Return the same without columns in which nothing was counted, at both ends. Nothing can be added to it."""
        used = self.rows.any(dim=0).nonzero().flatten().tolist() or [0]
        rows = self.rows[:, used[0] : used[-1] + 1].clone()
        return replace(self, rows=rows, lowest=self.lowest + used[0])

    @property
    def powers(self) -> list[int]:
        """The powers of two from the smallest gradient's to the largest's, without a gap."""
        used = self.rows[0].nonzero().flatten().tolist()
        return list(range(self.lowest + used[0], self.lowest + used[-1] + 1)) if used else []

    @property
    def counts(self) -> list[int]:
        """How many gradients begin with each of `powers`."""
        return [int(self.rows[0, power - self.lowest]) for power in self.powers]


def tally(gradient: torch.Tensor, cuts: Cuts) -> Tally:
    """Count a gradient by size: dense or sparse, of any floating-point dtype, on any device, in any memory order.

    Beside a few megabytes for the work it needs memory only where a sparse gradient must add what it stores twice.
    Counting happens where the gradient is, and comes over to the CPU in one transfer. (A second look, and a second
    transfer, is taken at infinite or NaN gradients and at such as are subnormal in their own dtype.)
    """
    plain = gradient.detach()
    values = plain.resolve_neg() if plain.layout is torch.strided else plain.coalesce().values()
    reader = Reader(values)
    carries = [cut.carry(reader.layout.fraction_bits) for cut in cuts]
    found = _by_field(reader, carries)
    not_finite = int(found[0, -1])
    if not_finite:  # and so with carries in wrong places
        found = _by_field(reader, carries, finite=False)
    zeros = int(found[1, 0]) - not_finite  # any other number has been carried away by the cut for `nonzero`
    subnormal = int(found[0, 0]) - zeros
    absent = gradient.numel() - values.numel()  # what a sparse gradient does not store is zero
    result = Tally(gradient.numel(), zeros + absent, largest=reader.layout.number(int(found[-1, 0])))
    result.place(found, reader.layout)
    if not_finite:
        result.infinite = _count_infinite(reader)
        result.nan = not_finite - result.infinite
    if subnormal:
        _place_subnormals(result, reader, carries, cuts)
    return result


def _by_field(reader: Reader, carries: Sequence[int], *, finite: bool = True) -> torch.Tensor:
    """Count magnitudes by their exponent field: as they are, and with each carry; last, the largest one.

    Carries are for finite numbers. Unless all are, infinite and NaN ones are taken for zeros, but in the first row.
    """
    rows = reader.values.new_zeros(len(carries) + 2, reader.layout.fields, dtype=torch.int64)
    as_they_are, *carried, largest = rows.unbind()
    for magnitudes in reader.magnitudes():
        as_they_are += reader.histogram(magnitudes)
        if not finite:
            magnitudes.masked_fill_(magnitudes >= reader.layout.infinity, 0)
        for row, carry in zip(carried, carries, strict=True):
            row += reader.histogram(magnitudes, carry)
        largest.clamp_(min=magnitudes.max())
    return rows.cpu()


def _count_infinite(reader: Reader) -> int:
    return sum(int((magnitudes == reader.layout.infinity).sum()) for magnitudes in reader.magnitudes())


def _place_subnormals(result: Tally, reader: Reader, carries: Sequence[int], cuts: Cuts) -> None:
    """Count gradients that are subnormal in their own dtype where they belong: they were all in the lowest exponents.

    Their fraction, a whole number, is one that the dtype holds as a normal number; so it is counted like any other.
    """
    layout = reader.layout
    first_normal, lowest = 1 << layout.fraction_bits, 1 - layout.bias - LOWEST
    for magnitudes in reader.magnitudes():
        fractions = magnitudes[(magnitudes > 0) & (magnitudes < first_normal)]
        for row, carry in enumerate(carries, start=1):
            result.rows[row, lowest] -= int((fractions + carry >= first_normal).sum())
        whole = tally(fractions.to(reader.dtype), cuts)
        result.rows += whole.rows.roll(layout.last_bit, dims=1)
        result.largest = max(result.largest, math.ldexp(whole.largest, layout.last_bit))
