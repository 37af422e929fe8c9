"""Where the numbers of a network lie, row by row, against the range of a format."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from amp_lab.view.given import is_format, named
from amp_lab.view.lettering import wrapped
from amp_lab.view.number_line import Limits
from amp_lab.view.plots import COLOURS

_BINS_PER_DECADE = 6
_FEW = 500  # one number in so many may lie beyond the picture
_ROOM = 0.08  # of the axis, on each side: for the words "zero" and "inf"
_HEADING = 1.05  # where the first row is at 0
_NAME_WIDTH = 24  # characters; a longer name takes two lines
_HEIGHT = 0.8  # of a row's hill, where rows are 1 apart
_LOST, _SUBNORMAL = "#f6d5c8", "#fdf0d5"


class Range(Protocol):
    """What the figure asks of a number format; `amp_lab.formats.Format` has it."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    def round(self, values: Any) -> torch.Tensor: ...
    def ulp(self, values: Any) -> torch.Tensor: ...


def against_range(rows: Mapping[str, torch.Tensor], number_format: Range, title: str) -> Figure:
    """Draw for each tensor how large its numbers are, over a logarithmic axis, and what a format loses of them.

    Each row is a hill; all hills are equally high. Zeros are left out: the axis has no place for them, and they are
    no loss.

    Args:
        rows: from top to bottom, a name and a tensor of any shape and floating-point dtype.
        number_format: `amp_lab.formats.FP16`, for instance. Where its range ends the background is coloured, and beside
            each row stands which share of the row's nonzero numbers becomes infinite or zero in it. In a format without
            infinity it is the share of those that are too large.
        title: what the picture says.

    Raises:
        TypeError: for rows that are no mapping to tensors of real numbers, and what is no format.
        ValueError: for no row, and for a row that has no nonzero number, or one that is infinite or NaN.
    """
    if not named(rows, "against_range", "{'logits': model(x)}"):
        raise ValueError("against_range was given no row to draw, for instance {'logits': model(x)}")
    if not is_format(number_format):
        raise TypeError(f"against_range needs a format, such as amp_lab.formats.FP16, not {number_format!r}")
    # Before there is a figure: a notebook would show it, empty, below the error.
    sizes = {name: _nonzero(name, values) for name, values in rows.items()}
    figure, axes = plt.subplots(figsize=(8.5, 1.0 + 0.5 * len(rows)), layout="constrained")
    limits = number_format.limits
    low, high = _ends(limits, [size.log10() for size in sizes.values()])
    names = _shade(axes, limits, low, high, _beyond(number_format))
    for row, size in enumerate(sizes.values()):
        _hill(axes, -row, size.log10())
        axes.text(1.01, -row, _losses(number_format, size), transform=axes.get_yaxis_transform(), va="center")
    axes.set_yticks([-row for row in range(len(rows))], [wrapped(name, _NAME_WIDTH) for name in rows])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(low, high), ylim=(-len(rows) + 0.4, 1.5))
    axes.set_title(wrapped(title))
    axes.set_xlabel("size of the numbers, powers of ten")
    axes.spines[["top", "right", "left"]].set_visible(False)
    words = f"in {number_format.name}"
    axes.text(1.01, _HEADING, words, transform=axes.get_yaxis_transform(), va="center")
    _hide_overlapping(figure, names)
    return figure


def _nonzero(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return the sizes of a row's nonzero numbers, FP64, in one dimension."""
    if not isinstance(values, torch.Tensor) or values.is_complex() or values.is_meta:
        raise TypeError(f"{name!r} must be a tensor of real numbers; this is {reprlib.repr(values)}")
    size = values.detach().cpu().to_dense().double().abs().flatten()
    if not size.isfinite().all():
        raise ValueError(
            f"{name!r} holds inf or NaN, which have no place on the axis: draw it as it is in FP32"
        )
    if not size.any():
        raise ValueError(f"{name!r} has no number but zero, and a logarithmic axis has no place for that")
    return size[size > 0]


def _ends(limits: Limits, rows: list[torch.Tensor]) -> tuple[float, float]:
    """Return the ends of the axis in powers of ten: the format's, and of each row all but a few numbers far out."""
    lows = [row.kthvalue(1 + len(row) // _FEW).values.item() for row in rows]
    highs = [row.kthvalue(len(row) - len(row) // _FEW).values.item() for row in rows]
    low = min(*lows, math.log10(limits.smallest_subnormal))
    high = max(*highs, math.log10(limits.max))
    room = max(1.0, _ROOM * (high - low))
    return low - room, high + room


def _shade(axes: Axes, limits: Limits, low: float, high: float, beyond: str) -> list[Text]:
    """Colour what is beyond the range, name the parts, and return the names."""
    smallest, smallest_normal, largest = (
        math.log10(each) for each in (limits.smallest_subnormal, limits.smallest_normal, limits.max)
    )
    below = smallest - math.log10(2)
    names = []
    for first, last, colour, words in (
        (low, below, _LOST, "zero"),
        (below, smallest_normal, _SUBNORMAL, "sub-\nnormal"),  # in a narrow stripe
        (smallest_normal, largest, "white", "normal"),
        (largest, high, _LOST, beyond.replace(" ", "\n")),
    ):
        axes.axvspan(first, last, color=colour, linewidth=0, zorder=0)
        place = min((first + last) / 2, high - 0.2), _HEADING
        # Black also where the style writes in white: the zones are pale.
        style: dict[str, Any] = {"color": "black", "fontsize": 9, "linespacing": 1.0}
        names.append(axes.text(*place, words, ha="center", va="center", **style))
    return names


def _hide_overlapping(figure: Figure, names: list[Text]) -> None:
    """Leave out a name that would touch the one before it: of BF16's range the subnormals are a narrow stripe."""
    figure.draw_without_rendering()  # only now the axes have their width
    end = -math.inf
    for name in names:
        box = name.get_window_extent()
        name.set_visible(bool(box.x0 > end))
        end = max(end, box.x1) if name.get_visible() else end


def _beyond(number_format: Range) -> str:
    """Say what becomes of numbers that are too large."""
    return "inf" if number_format.round(math.inf).isinf().item() else "too large"


def _hill(axes: Axes, base: float, powers: torch.Tensor) -> None:
    """Draw how many numbers lie at each power of ten, scaled to the height of a row."""
    first, last = math.floor(powers.min().item()), math.floor(powers.max().item()) + 1
    counts, edges = torch.histogram(powers, _BINS_PER_DECADE * (last - first), range=(first, last))
    heights = base - _HEIGHT / 2 + _HEIGHT * counts / counts.max()
    axes.stairs(heights, edges, baseline=base - _HEIGHT / 2, fill=True, color=COLOURS["blue"])


def _losses(number_format: Range, size: torch.Tensor) -> str:
    rounded, largest = number_format.round(size), number_format.limits.max
    # Past the middle to where the next number would be: a format that saturates makes its largest number of them.
    too_large = ~rounded.isfinite() | (size - largest > number_format.ulp(largest).item() / 2)
    shares = {_beyond(number_format): too_large, "zero": rounded == 0}
    words = [f"{_percent(lost.double().mean().item())} {name}" for name, lost in shares.items() if lost.any()]
    return ", ".join(words) or "all kept"


def _percent(share: float) -> str:
    if share < 0.01:
        return "under 1%"
    return f"{share:.0%}" if share <= 0.99 or share == 1 else "over 99%"
