"""The way of infinity and NaN through a traced run: where it comes from, and what reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from amp_lab.watching.replaying.records import Range, Trace, Traced


class Flow:
    """A trace, with its rows by number and by what reads them."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.rows = {each.op.number: each for each in trace.ops}

    @cached_property
    def readers(self) -> dict[int, list[Traced]]:
        """The rows that read what a row made, by its number."""
        found: dict[int, list[Traced]] = {}
        for row in self.trace.ops:
            for number in {each.made_by for each in row.inputs if each.made_by is not None}:
                found.setdefault(number, []).append(row)
        return found

    @property
    def forward(self) -> list[Traced]:
        return [each for each in self.trace.ops if each.op.phase == "forward"]

    @property
    def backward(self) -> list[Traced]:
        return [each for each in self.trace.ops if each.op.phase != "forward"]

    def maker(self, number: Range) -> Traced | None:
        """Return the row that made a tensor."""
        return None if number.made_by is None else self.rows.get(number.made_by)

    def before(self, row: Traced, most: int = 6) -> Iterator[Traced]:
        """Yield the rows that made what a row reads, and what those read, nearest first."""
        level, met = [row], {row.op.number}
        for _ in range(most):
            level = [
                made
                for each in level
                for read in each.inputs
                if (made := self.maker(read)) is not None and made.op.number not in met
            ]
            level = list({each.op.number: each for each in level}.values())
            met |= {each.op.number for each in level}
            yield from level

    def spoiling(self) -> list[Traced]:
        """Return the rows of the forward pass by which the loss is not finite: its not finite ancestors, in order."""
        return self._ancestors([each for each in self.forward if not _finite(each)][-1:], "forward")

    def spoiling_gradients(self) -> list[Traced]:
        """Return the rows of the backward pass by which gradients of parameters are not finite, in order."""
        ends = [each for each in self.backward if each.op.name == "accumulate_grad" and not _finite(each)]
        return self._ancestors(ends, "backward")

    def _ancestors(self, ends: list[Traced], phase: str) -> list[Traced]:
        """Return rows, and those of a phase that made what is not finite among what they read, and so on."""
        waiting, met = list(ends), dict[int, Traced]()
        while waiting:
            row = waiting.pop()
            if row.op.number in met or (row.op.phase == "forward") != (phase == "forward"):
                continue
            met[row.op.number] = row
            waiting += [
                made for read in row.inputs if not read.finite and (made := self.maker(read)) is not None
            ]
        return [met[number] for number in sorted(met)]


def _finite(row: Traced) -> bool:
    return all(each.finite for each in (*row.inputs, *row.outputs))


def nan_from_infinity(row: Traced) -> bool:
    """Whether NaN is new here, and made of infinities that went in: inf - inf, 0 * inf, a softmax of -inf alone."""
    new = any(each.nan for each in row.outputs) and not any(each.nan for each in row.inputs)
    return new and any(each.infinite for each in row.inputs)


def size(ranges: tuple[Range, ...]) -> float:
    """Return the largest finite size in some tensors."""
    return max((each.size for each in ranges), default=0.0)


def infinite(row: Traced) -> bool:
    return any(each.infinite for each in row.outputs)


def true_size(row: Traced) -> float | None:
    """Return the largest size that a row gives in FP64; infinite where FP64 has none either; None if not computed."""
    if row.truth is None:
        return None
    return row.truth.size if row.truth.finite else math.inf
