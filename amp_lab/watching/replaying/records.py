"""What a batch that was run again has shown: one record for each run, and for each operator that was traced."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from amp_lab.autocast.records import Op


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers of one tensor, at the moment an operator read or made it.

    `smallest` and `largest` are of its finite numbers, and `size` is the largest of their sizes; all 0 if there are
    none. `positive`, `negative` and `nan` count what is +inf, -inf and NaN, and `zeros` what is exactly 0, of `of`
    numbers. `name` is that of a parameter or buffer, `made_by` the number of the operator that made it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    smallest: float
    largest: float
    positive: int
    negative: int
    nan: int
    zeros: int
    of: int
    name: str | None = None
    made_by: int | None = None

    @property
    def size(self) -> float:
        return max(abs(self.smallest), abs(self.largest))

    @property
    def infinite(self) -> int:
        return self.positive + self.negative

    @property
    def finite(self) -> bool:
        return not (self.infinite or self.nan)


@dataclass(frozen=True, slots=True)
class Traced:
    """An operator that ran in a traced run.

    `op` is its row, as in an x-ray. `inputs` and `outputs` are the ranges of its floating-point tensors, inputs before
    autocast's casts. `truth`: what the operator gives in FP64 for the same inputs (after the casts); None where it was
    not computed: only for the first operators whose results are not finite though all that went in was.
    """

    op: Op
    inputs: tuple[Range, ...]
    outputs: tuple[Range, ...]
    truth: Range | None = None

    @property
    def makes_it(self) -> bool:
        """Whether infinity or NaN is new here: in a result, and in nothing that went in."""
        return all(each.finite for each in self.inputs) and not all(each.finite for each in self.outputs)


@dataclass(frozen=True, slots=True)
class Trace:
    """A run of a batch, forward and backward, operator by operator, at one loss scale."""

    scale: float
    ops: tuple[Traced, ...]
    loss: Range | None  # None: the run ended before
    error: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[Traced, ...]:
        """The operators that made infinity or NaN of finite numbers, in order."""
        return tuple(each for each in self.ops if each.makes_it)


@dataclass(frozen=True, slots=True)
class Replay:
    """A run of a batch that was not traced: at one loss scale, in the loop's own dtypes or all in FP32.

    `loss` is the loss before scaling (NaN and infinity as they are). `bad` are the names of the parameters whose
    gradients are not finite, `parameters` how many have a gradient.
    """

    scale: float
    loss: float
    bad: tuple[str, ...]
    parameters: int
    fp32: bool = False  # autocast was off

    @property
    def finite(self) -> bool:
        return not self.bad and self.loss - self.loss == 0.0
