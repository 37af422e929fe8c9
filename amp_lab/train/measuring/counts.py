"""Operations and bytes of a training step: the numbers, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.train.measuring.gpus import Gpu
from amp_lab.train.measuring.units import in_bytes, in_flops

_SHOWN: Final = 16  # rows of the table
_MARKED: Final = 12  # operators in the roofline


@dataclass(frozen=True)
class Row:
    """All calls of one operator in one phase with floating-point numbers of one dtype (None: it takes none)."""

    operator: str
    phase: str
    dtype: torch.dtype | None
    calls: int
    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite where nothing is moved."""
        return _per(self.flops, self.bytes)


@dataclass(frozen=True)
class Counts:
    """Operations and bytes of a training step.

    `rows`: by operator. `by_module`: operations, forward and backward, by the path of the module ("": the model); a
    module's include those of the modules in it.
    """

    rows: tuple[Row, ...]
    by_module: Mapping[str, int]

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiplication and an addition as two."""
        return sum(row.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes read and written, by estimate."""
        return sum(row.bytes for row in self.rows)

    @property
    def intensity(self) -> float:
        """Operations per byte: the arithmetic intensity."""
        return _per(self.flops, self.bytes)

    @property
    def forward(self) -> Counts:
        return self._of("forward")

    @property
    def backward(self) -> Counts:
        return self._of("backward")

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The operators that move bytes, and for which no operations are counted; those that move most come first."""
        rows = sorted((row for row in self.rows if not row.flops), key=lambda row: -row.bytes)
        return tuple(dict.fromkeys(row.operator for row in rows))

    def _of(self, phase: str) -> Counts:
        return Counts(tuple(row for row in self.rows if row.phase == phase), {})

    def __str__(self) -> str:
        head = f"{in_flops(self.flops)}, {in_bytes(self.bytes)} moved: {self.intensity:.3g} FLOP/byte"
        lines = [
            f"  {row.operator[:34]:34} {row.phase:8} {dtype_in_words(row.dtype):9} {row.calls:5} ×"
            f" {in_flops(row.flops) if row.flops else '-':>12} {in_bytes(row.bytes):>10} {row.intensity:8.3g}"
            for row in self.rows[:_SHOWN]
        ]
        left = len(self.rows) - _SHOWN
        return "\n".join([head, *lines, *([f"  and {left} more"] if left > 0 else [])])

    def plot(self, gpu: Gpu | str) -> Any:
        """Return the roofline of a GPU, with the twelve operators on it that have most operations."""
        from amp_lab.train.measuring.rooflines import roofline_figure

        rows = [row for row in self.rows if row.flops][:_MARKED]
        several = len({row.dtype for row in rows}) > 1
        points = {
            f"{row.operator}, {row.phase}" + (f", {dtype_in_words(row.dtype)}" if several else ""): (
                row.flops,
                row.bytes,
                row.dtype,
            )
            for row in rows
        }
        return roofline_figure(gpu, points)


def _per(flops: int, moved: int) -> float:
    return flops / moved if moved else float("inf") if flops else 0.0
