"""What 16 bits, or 8, would make of gradients: how many become zero, and which loss scale saves them.

>>> from amp_lab.watching.gradients import gradient_report
>>> report = gradient_report({"weight": torch.tensor([0.0, 2.0**-26, 2.0**-20, 1.0])})
>>> report.at(1.0).zero, report.at(2.0**10).zero
(1, 0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from amp_lab.formats import Format
from amp_lab.watching.counting import tables
from amp_lab.watching.counting.counts import Tally, tally
from amp_lab.watching.counting.cuts import cuts_of, format_of
from amp_lab.watching.counting.factors import power_of_two
from amp_lab.watching.counting.recommending import Recommendation, recommend
from amp_lab.watching.counting.sources import Source, has_numbers, named_gradients, no_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_GRADIENT: Final = (
    "no parameter has a gradient: call loss.backward() first, and gradient_report before zero_grad(); "
    "a parameter with requires_grad=False never gets one"
)


def gradient_report(
    model_or_grads: Source, dtype: torch.dtype = torch.float16, scale: float = 1.0
) -> GradientReport:
    """Count what a narrow dtype would make of gradients, at one loss scale and at every power of two.

    Give it the true gradients, such as those of a step in FP32; after `scaler.scale(loss).backward()` call
    `scaler.unscale_(optimizer)` first. Whatever an FP16 backward pass has already lost is an exact zero here.

    *At a scale* means: with the loss multiplied by it, backward would hand over `gradient * scale`. That product is
    taken as exact, and rounded once to `dtype`, to nearest, ties to even. All counts are exact, so a report can be
    held against a cast of every single gradient.

    It knows only the gradients that it is given. Those of the layers' outputs pass through `dtype` on the way back,
    too, and can be much smaller or larger than those of the weights; with `output.retain_grad()` before backward you
    can give their `.grad` as well, as lesson 04 does.

    It is one pass over the gradients, where they are, and needs a few megabytes whatever their number (beside what it
    takes to add up a sparse gradient that stores entries twice).

    Args:
        model_or_grads: a model or an optimizer (the `.grad` of its parameters); a mapping from names, or a list or
            generator, of gradients or parameters, or of (name, gradient) tuples; or one gradient. Of any
            floating-point dtype, shape and device, dense or sparse (COO). None counts as a parameter without gradient.
            Of a parameter, which is a leaf that requires a gradient, it takes the `.grad`. Any other tensor it takes
            for a gradient and cannot tell whether it is one: do not give weights that were detached.
            Of a DTensor, as FSDP2 makes them, give `.full_tensor()` or `.to_local()`.
        dtype: torch.float16, torch.bfloat16, torch.float8_e5m2 or torch.float8_e4m3fn.
        scale: the scale that the report shows unless asked for another: a power of two, 2^-149 to 2^127. Other
            scales are refused: only a power of two leaves the digits of every gradient as they are.

    Raises:
        TypeError: for what is no gradient (integers, complex numbers, texts, a state dict, a loss), tensors whose
            numbers cannot be read (of DTensor, nested, on the meta device), and a dtype or scale that is none.
        ValueError: if there is no gradient at all, two have one name, the dtype is not one of the four, or the scale is
            no power of two.
    """
    format = format_of(dtype)
    scale = power_of_two(scale)
    parameters, without, total = {}, [], Tally()
    for name, gradient in named_gradients(model_or_grads):
        if gradient is None:
            without.append(name)
            continue
        found = _tally(name, gradient, format)
        total.add(found)
        parameters[name] = GradientCounts(found.trimmed(), format)
    if not parameters:
        raise ValueError(_NO_GRADIENT if without else _nothing_in(model_or_grads))
    return GradientReport(format, scale, parameters, tuple(without), GradientCounts(total, format))


def _tally(name: str, gradient: torch.Tensor, format: Format) -> Tally:
    try:
        return tally(gradient, cuts_of(format))
    except (RuntimeError, TypeError) as error:
        if has_numbers(gradient):
            raise
        raise TypeError(f"{name!r} {no_numbers(gradient)}") from error


def _nothing_in(source: Source) -> str:
    once = " (what a generator, such as named_parameters(), yields can be read only once)"
    return f"there is no parameter and no gradient to report on{once if isinstance(source, Iterator) else ''}"


class Window(NamedTuple):
    """What a format does at scale 1: all sizes up to `zero_up_to` become zero, from `normal_from` on they are normal
    numbers, from `overflow_from` on too large. `smallest` is the smallest number that is not zero."""

    zero_up_to: float
    smallest: float
    normal_from: float
    overflow_from: float


@dataclass(frozen=True)
class Fates:
    """What becomes of finite nonzero gradients at a scale, by the kind of number that comes out of the rounding.

    `below_smallest` counts once more those under the smallest number of the format (2^-24 in FP16): all that become
    zero, and those that are rounded up to it. Micikevicius et al., "Mixed Precision Training", speak of these.
    """

    scale: float
    zero: int
    subnormal: int
    normal: int
    overflow: int
    below_smallest: int

    @property
    def nonzero(self) -> int:
        """How many there are: what shares are taken of."""
        return self.zero + self.subnormal + self.normal + self.overflow

    def share(self, fate: str) -> float:
        """Return which part of the nonzero gradients has a fate, 0 to 1; 0 where there are none.

        Args:
            fate: "zero", "subnormal", "normal", "overflow" or "below_smallest".
        """
        known = ("zero", "subnormal", "normal", "overflow", "below_smallest")
        if fate not in known:
            raise ValueError(f"fate={fate!r}: it is one of {', '.join(map(repr, known))}")
        return int(getattr(self, fate)) / self.nonzero if self.nonzero else 0.0


@dataclass(frozen=True, repr=False, eq=False)
class GradientCounts:
    """The gradients of one parameter, or of all."""

    _tally: Tally
    _format: Format

    @property
    def entries(self) -> int:
        """How many numbers there are, zeros and all."""
        return self._tally.entries

    @property
    def zeros(self) -> int:
        """How many are exactly zero as they are."""
        return self._tally.zeros

    @property
    def infinite(self) -> int:
        """How many are infinite as they are."""
        return self._tally.infinite

    @property
    def nan(self) -> int:
        """How many are NaN as they are."""
        return self._tally.nan

    @property
    def nonzero(self) -> int:
        """How many are finite and not zero."""
        return self.entries - self.zeros - self.infinite - self.nan

    @property
    def largest(self) -> float:
        """The largest finite size; 0 if there is none."""
        return self._tally.largest

    def at(self, scale: float) -> Fates:
        """Return what becomes of them at a scale, a power of two."""
        scale = power_of_two(scale)
        cuts, shift = cuts_of(self._format), math.frexp(scale)[1] - 1
        survive, normal, too_large = (
            self._tally.above(row, cut.power - shift) for row, cut in enumerate(cuts, start=1)
        )
        at_least_smallest = self._tally.above(0, cuts.nonzero.power - shift)
        return Fates(
            scale=scale,
            zero=self.nonzero - survive,
            subnormal=survive - normal,
            normal=normal - too_large,
            overflow=too_large,
            below_smallest=self.nonzero - at_least_smallest,
        )

    def __repr__(self) -> str:
        return f"<{self.entries:,} gradients, {self.nonzero:,} finite and nonzero, the largest {self.largest:.3g}>"


@dataclass(frozen=True, repr=False, eq=False)
class GradientReport:
    """What `gradient_report` found. Print it, leave it as the last line of a cell, `plot` it, or ask `at(scale)`.

    It holds counts, no gradients: it does not change when they do.
    """

    _format: Format
    scale: float
    parameters: Mapping[str, GradientCounts]
    without_gradient: tuple[str, ...]
    total: GradientCounts

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the gradients would be rounded to."""
        assert self._format.dtype is not None
        return self._format.dtype

    @property
    def format_name(self) -> str:
        """What people call that dtype: "FP16"."""
        return self._format.name

    @property
    def window(self) -> Window:
        """The ends of the format, at scale 1."""
        nonzero, normal, overflow = cuts_of(self._format)
        return Window(nonzero.size, self._format.limits.smallest_subnormal, normal.size, overflow.size)

    @property
    def powers(self) -> list[int]:
        """The powers of two of the histogram, without a gap, from the smallest gradient's to the largest's."""
        return self.total._tally.powers

    @property
    def counts(self) -> list[int]:
        """How many gradients, of all parameters, have 2^power <= size < 2^(power + 1), for each of `powers`."""
        return self.total._tally.counts

    def at(self, scale: float | None = None) -> Fates:
        """Return what becomes of all gradients at a scale, a power of two; None: at that of the report."""
        return self.total.at(self.scale if scale is None else scale)

    def recommend(self, headroom: float = 4.0) -> Recommendation:
        """Return the largest power of two, 2^-24 to 2^126, that is safe as a loss scale, and why.

        Safe: `headroom` times the largest gradient, times the scale, is still a number of the format. Later steps may
        have larger gradients than this one; 4 lets them grow by two powers of two. BF16 reaches as far up as FP32: for
        it the scale is 1 unless a gradient would become zero or overflow, and then the smallest that saves as many as
        any that is safe, or the largest that is safe.

        None if there are infinite or NaN gradients, no such power is safe, or all gradients would become zero with it.

        Raises:
            TypeError: if headroom is no number.
            ValueError: if it is under 1 or not finite.
        """
        return recommend(self, self._format, headroom)

    @property
    def recommended_scale(self) -> float | None:
        """The scale that `recommend` gives with its usual headroom; None where no scale helps."""
        return self.recommend().scale

    def plot(self, scale: float | None = None, title: str | None = None) -> Figure:
        """Draw the gradients by size, and what the format makes of them at a scale; None: at that of the report."""
        from amp_lab.view.gradients import gradient_histogram  # Matplotlib takes long to import

        return gradient_histogram(self, self.scale if scale is None else power_of_two(scale), title)

    def table(self, scale: float | None = None, rows: int | None = 20) -> str:
        """Return the report as text: a line for all gradients, and one for each of the parameters that lose most.

        Args:
            scale: a power of two; None: that of the report.
            rows: how many parameters to list; None: all, in the model's order.

        Raises:
            TypeError: if scale or rows is no number.
            ValueError: if scale is no power of two that FP32 holds, or rows is negative.
        """
        limit = tables.checked_limit(rows)
        return tables.as_text(self, power_of_two(self.scale if scale is None else scale), limit)

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return tables.as_html(self, self.scale, 20)

    def __rich__(self) -> object:
        return tables.as_rich(self, self.scale, 20)
