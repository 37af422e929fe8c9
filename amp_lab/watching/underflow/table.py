"""What FP16 made zero in the course of a run: a table to print, to draw, and to ask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch

from amp_lab.watching.underflow import scales, shown
from amp_lab.watching.underflow.judging import WORTH, Row, judge
from amp_lab.watching.underflow.sample import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NONE: Final = (
    "no gradients were sampled: the loop ran no backward pass in FP16 (autocast with dtype=torch.float16) while it was "
    "watched, or unscaled its gradients before they could be seen"
)


class Underflow:
    """Which gradients FP16 made zero, module by module, in the sampled steps: 1 to 3, and each 32nd.

    `watch(...).underflow()` makes one. It holds counts, no gradients. What is zero for other reasons (a ReLU, a word
    that is not in the batch, a mask) is not taken for lost; `amp_lab/watching/underflow/judging.py` says how that is
    told, and how far to trust it. At most 64 samples are kept of a run, the older ones farther apart.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.rows: Sequence[Row] = tuple(judge(samples))

    @property
    def modules(self) -> list[str]:
        """The paths of the modules that have gradients, in the model's order."""
        return list(dict.fromkeys(row.module for row in self.rows))

    @property
    def steps(self) -> list[int]:
        """The sampled steps, in order."""
        return sorted({row.step for row in self.rows})

    @cached_property
    def began(self) -> dict[str, int]:
        """For each module that lost 5% of its gradients or more: the first sampled step in which it did."""
        found: dict[str, int] = {}
        for row in self.rows:
            if row.share_lost >= WORTH:
                found.setdefault(row.module, row.step)
        return found

    @cached_property
    def untold(self) -> dict[str, int]:
        """For each module all of whose gradients were 0 in a sample, and nobody can tell why: the first such step.

        FP16 may have made them 0, or they are 0 in FP32, too: an unused part, a product with zero, a loss that is 0.
        `scale_to_try` tells.
        """
        found: dict[str, int] = {}
        for row in self.rows:
            if row.untold and row.module not in self.began:
                found.setdefault(row.module, row.step)
        return found

    @cached_property
    def sure(self) -> bool:
        """Whether `scale` rests on numbers that were seen. It does not where most of a module's numbers are lost."""
        return not any(row.below and row.share_lost >= WORTH for row in self.rows)

    @cached_property
    def scale_to_try(self) -> float | None:
        """The scale that tells whether zeros are FP16's: it leaves room above, and is up to 2^16 times the present.

        What is still 0 with it is hardly FP16's doing. None if the gradients leave no room for a larger scale.
        """
        return scales.scale_to_try(self.rows)

    @cached_property
    def scale(self) -> float | None:
        """The loss scale, a power of two, that would keep what is lost; None where no scale does: take BF16.

        With it the estimate of what is lost falls below 1% in every module, and the largest gradient of all
        samples stays below 65504 / 2. Where most of a module's numbers are lost, nobody can tell how small they were
        (`sure` is False then): it is the largest scale that leaves this room, up to 2^16 times the present one, and
        worth a try. A scale that was seen to overflow is not advised. It knows the gradients of
        weights alone; those of layers' outputs may be larger, and a scaler finds that out. If nothing is lost, it is
        the present scale.
        """
        return scales.scale_for(self.rows)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype for autocast: torch.float16, or torch.bfloat16 where no scale helps."""
        return torch.bfloat16 if self.scale is None and self.rows else torch.float16

    def at(self, step: int) -> list[Row]:
        """Return the rows of a sampled step.

        Raises:
            ValueError: for a step that was not sampled.
        """
        found = [row for row in self.rows if row.step == step]
        if not found:
            steps = ", ".join(f"{each:,}" for each in self.steps) or "none"
            raise ValueError(f"step={step}: gradients were sampled in these steps: {steps}")
        return found

    def plot(self, title: str | None = None) -> Figure:
        """Draw modules × sampled steps, coloured by the share of gradients that FP16 made zero.

        Raises:
            ValueError: if nothing was sampled.
        """
        if not self.rows:
            raise ValueError(_NONE)
        from amp_lab.view.underflow import underflow_map  # Matplotlib takes long to import

        return underflow_map(self, title)

    def to_json(self) -> dict[str, Any]:
        """Return everything in types of JSON; sizes that are none are None."""
        names = Row.__dataclass_fields__
        rows = [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name in names
                for value in [getattr(row, name)]
            }
            for row in self.rows
        ]
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            "rows": rows,
            "began": dict(self.began),
            "untold": dict(self.untold),
            "scale": self.scale,
            "sure": self.sure,
            "scale_to_try": self.scale_to_try,
            "dtype": dtype,
        }

    def summary(self) -> str:
        """Say in a sentence or two what was lost, since when, and what would keep it."""
        return shown.summary(self) if self.rows else f"Nothing to tell: {_NONE}."

    def __repr__(self) -> str:
        return shown.as_text(self)

    def _repr_html_(self) -> str:
        return shown.as_html(self)

    def __rich__(self) -> object:
        return shown.as_rich(self)
