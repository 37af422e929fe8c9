"""Where the numbers of a format lie: all of them on a line, how far they reach, and how far apart they are.

The formats are handed in, `amp_lab.formats.FP16` for instance: nothing here computes a number of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from amp_lab.view.given import several
from amp_lab.view.lettering import wrapped
from amp_lab.view.plots import COLOURS
from amp_lab.view.typed import as_float


class Limits(Protocol):
    """The ends of a format's positive numbers."""

    @property
    def max(self) -> float: ...
    @property
    def smallest_normal(self) -> float: ...
    @property
    def smallest_subnormal(self) -> float: ...


class NumberFormat(Protocol):
    """What the figures ask of a number format; `amp_lab.formats.Format` has it."""

    @property
    def name(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def fraction_bits(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    def decode(self, patterns: Any) -> torch.Tensor: ...
    def ulp(self, values: Any) -> torch.Tensor: ...


# So many numbers in sight are no longer lines that an eye can tell apart.
_MOST_TICKS = 400
_LARGEST_DECODED_BITS = 16
_LARGEST_END = 1.7e308
# Beyond these Matplotlib's own arithmetic, in FP64, comes to infinity or to nothing, and it chooses other ends.
_SHORTEST, _FARTHEST, _FINEST = 1e-280, 1e300, 1e-12
_LINES = ("black", "orange", "blue", "green", "pink")


def number_line(formats: Sequence[NumberFormat], low: float, high: float, title: str) -> Figure:
    """Draw every number that small formats have from `low` to `high`, each as one mark on its format's line.

    Args:
        formats: from top to bottom; of at most 16 bits, as all their numbers are looked at.
        low, high: the ends of the line, finite.
        title: what the picture says.

    Raises:
        TypeError: for anything but a list of formats, and ends that are no numbers.
        ValueError: for no format and for more than five, an empty or endless line, a format of more than 16 bits,
            and for more numbers than can be told apart.
    """
    formats, low, high = several(formats, "number_line"), as_float(low, "low"), as_float(high, "high")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"a line from {low:g} to {high:g} has no length: choose finite ends, low < high")
    farthest = max(-low, high)
    if farthest > _FARTHEST or high - low < max(_SHORTEST, farthest * _FINEST):
        raise ValueError(
            f"a line from {low!r} to {high!r} cannot be drawn: choose ends within ±{_FARTHEST:g}, further apart than "
            f"{_SHORTEST:g} and than {_FINEST:g} of themselves"
        )
    # Before there is a figure: a notebook would show it, empty, below the error.
    colours, rows = _colours(formats), [_numbers_between(each, low, high) for each in formats]
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.55 * len(rows)), layout="constrained")
    for height, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        axes.hlines(-height, low, high, color="#bbbbbb", linewidth=1)
        axes.vlines(row, -height - 0.3, -height + 0.3, color=colour, linewidth=1.4)
    _name_rows(axes, [f"{each.name}\n{len(row)} numbers" for each, row in zip(formats, rows, strict=True)])
    margin = 0.01 * (high - low)
    axes.set(xlim=(low - margin, high + margin), xlabel="value", title=wrapped(title))
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _numbers_between(number_format: NumberFormat, low: float, high: float) -> list[float]:
    if number_format.bits > _LARGEST_DECODED_BITS:
        raise ValueError(
            f"{number_format.name} has {number_format.bits} bits, too many numbers to look at them all; "
            f"a line shows formats of at most {_LARGEST_DECODED_BITS} bits"
        )
    values = number_format.decode(torch.arange(2**number_format.bits))
    inside = sorted({value for value in values.tolist() if low <= value <= high})  # +0 and -0 are one mark
    if len(inside) > _MOST_TICKS:
        raise ValueError(
            f"{number_format.name} has {len(inside):,} numbers from {low:g} to {high:g}, and {_MOST_TICKS} marks "
            "can be told apart: choose a shorter line"
        )
    return inside


def range_and_precision(formats: Sequence[NumberFormat], title: str) -> Figure:
    """Draw for each format from where to where its positive numbers go, and beside it how fine they are.

    On the left, on a logarithmic axis, the pale part of a bar are the subnormal numbers. On the right a bar is
    as long as the number of decimal digits that the format keeps: (fraction_bits + 1) · log10(2), for the
    stored fraction bits and the leading one that is not stored.

    Args:
        formats: from top to bottom.
        title: what the picture says.

    Raises:
        TypeError: for anything but a list of formats.
        ValueError: for no format.
    """
    formats = several(formats, "range_and_precision")
    size = (8.5, 0.9 + 0.55 * len(formats))
    figure, (reach, fineness) = plt.subplots(
        1, 2, figsize=size, width_ratios=(3, 1.15), sharey=True, layout="constrained"
    )
    figure.suptitle(wrapped(title))
    for height, each in enumerate(formats):
        _draw_reach(reach, -height, each.limits)
        _draw_fineness(fineness, -height, each.fraction_bits)
    _name_rows(reach, [each.name for each in formats])
    _scale_reach(reach, [each.limits for each in formats])
    most = max(_digits(each.fraction_bits) for each in formats)
    fineness.set(
        xlabel="decimal digits\n(bits, with the leading 1)",
        xlim=(0, 2 * most),
        xticks=range(0, math.ceil(most) + 1, 2),
    )
    for axes in (reach, fineness):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _draw_reach(axes: Axes, height: int, limits: Limits) -> None:
    """Draw one bar, in powers of ten: beside FP64's ends a logarithmic axis of Matplotlib's has no room left."""
    ends = (limits.smallest_subnormal, limits.smallest_normal, limits.max)
    first, middle, last = map(math.log10, ends)
    axes.barh(height, middle - first, left=first, height=0.5, color="#9ecae8")
    axes.barh(height, last - middle, left=middle, height=0.5, color=COLOURS["blue"])
    _write_beside(axes, _short(limits.smallest_subnormal), (first, height), left=True)
    _write_beside(axes, _short(limits.max), (last, height))


def _scale_reach(axes: Axes, limits: Sequence[Limits]) -> None:
    low = math.log10(min(each.smallest_subnormal for each in limits))
    high = math.log10(max(each.max for each in limits))
    room = 0.2 * (high - low)  # for what is written beside the bars
    powers = _round_powers(low, high)
    axes.set(xlabel="positive numbers (pale: subnormal)", xlim=(low - room, high + room))
    axes.set_xticks(powers, [f"$10^{{{power}}}$" for power in powers])


def _draw_fineness(axes: Axes, height: int, fraction_bits: int) -> None:
    digits = _digits(fraction_bits)
    axes.barh(height, digits, height=0.5, color=COLOURS["green"])
    _write_beside(axes, f"{digits:.1f} ({fraction_bits + 1})", (digits, height))


def _digits(fraction_bits: int) -> float:
    return (fraction_bits + 1) * math.log10(2)


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e6 else f"{value:.2g}"


def _round_powers(low: float, high: float) -> list[int]:
    """Return a handful of whole powers of ten from `low` to `high`: multiples of 1, 2, 5, 10, 20, 50, 100 or 200."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200) if high - low <= 6 * step)
    return [step * each for each in range(math.ceil(low / step), math.floor(high / step) + 1)]


def spacing(formats: Sequence[NumberFormat], title: str, low: float = 1e-9, high: float = 1e6) -> Figure:
    """Draw how far from each other a format's neighbours are, against how large they are, on two logarithmic axes.

    On the left the gap itself, on the right the gap divided by the number. A cross marks where a format ends.

    Args:
        formats: at most five, so that their lines can be told apart.
        title: what the picture says.
        low, high: the magnitudes to show, positive.

    Raises:
        TypeError: for anything but a list of formats, and magnitudes that are no numbers.
        ValueError: for no format, for more than five, for magnitudes that are not 0 < low < high < inf, and for a
            format that has no numbers there.
    """
    formats, low, high = several(formats, "spacing"), as_float(low, "low"), as_float(high, "high")
    if not 0 < low < high < math.inf:
        raise ValueError(f"a logarithmic axis cannot go from {low:g} to {high:g}: choose 0 < low < high")
    colours = _colours(formats)
    stairs = [_staircase(each, low, high) for each in formats]
    figure, (absolute, relative) = plt.subplots(1, 2, figsize=(8.5, 4), layout="constrained")
    figure.suptitle(wrapped(title))
    gaps = [gap for _, gap in stairs]
    shares = [gap / numbers for numbers, gap in stairs]
    for axes, heights in ((absolute, gaps), (relative, shares)):
        # Limits before lines: choosing them by itself, Matplotlib multiplies beyond FP64's end.
        axes.set(xlabel="size of the number", xscale="log", yscale="log")
        _scale_sizes(axes, low, high)
        _scale_heights(axes, torch.cat(heights))
        for each, colour, (numbers, _), height in zip(formats, colours, stairs, heights, strict=True):
            axes.plot(numbers, height, color=colour, linewidth=1.6)
            ends_here = each.limits.max < high
            axes.plot(numbers[-1:], height[-1:], "X" if ends_here else "", color=colour, markersize=8)
            _write_beside(axes, each.name, (numbers[-1].item(), height[-1].item()), colour=colour)
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    absolute.set_title("gap to the next number", fontsize="medium")
    relative.set_title("the same gap, divided by the number", fontsize="medium")
    absolute.set_ylabel("gap")
    relative.set_ylabel("gap ÷ number")
    return figure


def _scale_sizes(axes: Axes, low: float, high: float) -> None:
    """Set limits and ticks of the horizontal axis, with room for the names: little of it next to FP64's end."""
    first, last = math.log10(low), math.log10(high)
    end = max(high, _power_of_ten(last + 0.17 * (last - first)))
    axes.set_xlim(low, end)
    axes.set_xticks([10.0**power for power in _round_powers(first, last)])
    if end > _LARGEST_END / 100:
        axes.xaxis.set_minor_locator(NullLocator())  # Matplotlib's own multiplies beyond FP64's end


def _scale_heights(axes: Axes, heights: torch.Tensor) -> None:
    """Set limits and ticks of the vertical axis, with a margin."""
    low, high = heights.min().item(), heights.max().item()
    first, last = math.log10(low), math.log10(high)
    margin = 0.05 * max(last - first, 1)
    axes.set_ylim(min(low, _power_of_ten(first - margin)), _power_of_ten(last + margin))
    axes.set_yticks([10.0**power for power in _round_powers(first - margin, last + margin)])


def _power_of_ten(exponent: float) -> float:
    """Return 10^exponent, or where that is beyond FP64 a number close to its end."""
    return math.pow(10, max(-323, min(exponent, math.log10(_LARGEST_END))))


def _staircase(number_format: NumberFormat, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers and the gap at each: both ends of each stretch between powers of two."""
    limits = number_format.limits
    start, stop = max(low, limits.smallest_subnormal), min(high, limits.max)
    if start >= stop:
        raise ValueError(
            f"{number_format.name} has no numbers from {low:g} to {high:g}: choose other magnitudes"
        )
    exponents = torch.arange(math.floor(math.log2(start)), math.ceil(math.log2(stop)))
    powers = torch.exp2(exponents.double())
    ends = torch.stack([powers, 2 * powers], dim=1).clamp(start, stop)
    return ends.flatten(), number_format.ulp(powers).repeat_interleave(2)


def _write_beside(
    axes: Axes, text: str, point: tuple[float, float], *, left: bool = False, colour: str = "black"
) -> None:
    axes.annotate(
        text,
        point,
        (-5 if left else 7, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=9,
        color=colour,
    )


def _colours(formats: Sequence[NumberFormat]) -> list[str]:
    if len(formats) > len(_LINES):
        raise ValueError(
            f"at most {len(_LINES)} formats can be told apart in one picture; {len(formats)} were given"
        )
    return [COLOURS[name] for name in _LINES[: len(formats)]]


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks([-height for height in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-len(names) + 0.45, 0.55)
