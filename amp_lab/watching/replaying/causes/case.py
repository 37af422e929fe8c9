"""What is known when a cause is looked for, and what a cause says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import torch

from amp_lab.watching.replaying.flow import Flow, nan_from_infinity
from amp_lab.watching.replaying.records import Replay, Trace, Traced
from amp_lab.watching.replaying.scales import SMALLEST

HALVES: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """A batch that was run again.

    `replays` are those with autocast, `fp32` the one without (None: it could not be run), `cure` the largest scale at
    which the batch is finite. `weights`, `data` and `targets` name what is not finite before anything runs: parameters
    and buffers by their names, tensors of the batch by their places. `names` are those of all parameters and buffers.
    """

    replays: Sequence[Replay]
    cure: float | None
    fp32: Replay | None
    trace: Trace | None
    weights: Sequence[str] = ()
    data: Sequence[str] = ()
    targets: Sequence[str] = ()
    names: frozenset[str] = frozenset()
    smallest: float = SMALLEST  # down to which a scale was searched
    fp32_trace: Trace | None = None  # of a loss that is not finite without autocast either

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.trace or Trace(1.0, (), None))

    @property
    def finite(self) -> bool:
        """Whether nothing overflowed."""
        return all(each.finite for each in self.replays)

    @property
    def forward_bad(self) -> bool:
        """Whether the loss is not finite."""
        return any(not math.isfinite(each.loss) for each in self.replays)

    @property
    def fine_in_fp32(self) -> bool:
        return self.fp32 is not None and self.fp32.finite

    @property
    def bad_in_fp32(self) -> bool:
        return self.fp32 is not None and not self.fp32.finite

    @property
    def loss_bad_in_fp32(self) -> bool:
        return self.fp32 is not None and not math.isfinite(self.fp32.loss)

    @cached_property
    def spoiling(self) -> list[Traced]:
        return self.flow.spoiling()

    @cached_property
    def fp32_row(self) -> Traced | None:
        """The row to blame for a loss that is not finite without autocast; None if it is finite, or the code's own
        casts to 16 bits are to blame there, too."""
        if self.fp32_trace is None:
            return None
        rows = Flow(self.fp32_trace).spoiling()
        row = next((each for each in rows if each.makes_it), None)
        halves = row is not None and any(each.dtype in HALVES for each in (*row.inputs, *row.outputs))
        return None if halves else row

    @cached_property
    def row(self) -> Traced | None:
        """The row to blame: the first by which loss or gradients are not finite, and which was given finite numbers.

        Where no such row is, the first that makes NaN of infinities; or else the first that is not finite.
        """
        if self.forward_bad:
            rows = self.spoiling or [each for each in self.flow.forward if _bad(each)]
        else:
            rows = self.flow.spoiling_gradients() or [each for each in self.flow.backward if _bad(each)]
        new = [each for each in rows if each.makes_it] or [each for each in rows if nan_from_infinity(each)]
        return next(iter(new or rows), None)


def _bad(row: Traced) -> bool:
    return not all(each.finite for each in row.outputs)


@dataclass(frozen=True)
class Verdict:
    """A cause, by its id, with what is said about it. `row` is where it is seen."""

    cause: str
    sentence: str
    advice: str
    phase: Literal["forward", "backward"] | None = None
    row: Traced | None = None
    cures: bool = False
    others: tuple[Traced, ...] = ()
    notes: tuple[str, ...] = ()
