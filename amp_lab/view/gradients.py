"""Gradients by size, against the numbers that a narrow format has: what becomes zero, what overflows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from amp_lab.view import powers
from amp_lab.view.lettering import ink, wrapped
from amp_lab.view.plots import COLOURS
from amp_lab.view.typed import as_float


class Fates(Protocol):
    """How many gradients become what."""

    @property
    def nonzero(self) -> int: ...
    def share(self, fate: str) -> float: ...


class Window(Protocol):
    """Where a format's numbers begin and end."""

    @property
    def zero_up_to(self) -> float: ...
    @property
    def smallest(self) -> float: ...
    @property
    def normal_from(self) -> float: ...
    @property
    def overflow_from(self) -> float: ...


class Counts(Protocol):
    """What is said of gradients that the picture has no place for."""

    @property
    def entries(self) -> int: ...
    @property
    def nonzero(self) -> int: ...
    @property
    def zeros(self) -> int: ...
    @property
    def infinite(self) -> int: ...
    @property
    def nan(self) -> int: ...
    @property
    def largest(self) -> float: ...


class Report(Protocol):
    """What is asked of a report; `amp_lab.watching.gradients.GradientReport` answers."""

    @property
    def format_name(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> Window: ...
    @property
    def total(self) -> Counts: ...
    @property
    def powers(self) -> Sequence[int]: ...
    @property
    def counts(self) -> Sequence[int]: ...
    def at(self, scale: float | None = None) -> Fates: ...


class _Look(NamedTuple):
    colour: str
    hatch: str
    name: str


# Colours that colour-blind people can tell apart; the hatching tells what is lost without any.
LOOKS: Final = {
    "zero": _Look(COLOURS["orange"], "///", "become zero"),
    "subnormal": _Look(COLOURS["pink"], "", "subnormal"),
    "normal": _Look(COLOURS["blue"], "", "normal"),
    "overflow": _Look(COLOURS["black"], "xxx", "overflow"),
}
_MARGIN: Final = 3  # powers of two to be seen beyond the window's ends
_WORD: Final = 0.1  # of the axis, beside the bars: for "smallest" and "largest"
_WIDTH, _HEIGHT, _LINE = 8.0, 3.9, 0.21  # of the figure, and of one more line of its title, in inches


_DOTTED: Final[dict[str, Any]] = {"linewidth": 1, "linestyle": ":", "marker": "None"}
_TRIANGLE: Final[dict[str, Any]] = {
    "linestyle": "",
    "marker": "v",
    "markersize": 8,
    "color": COLOURS["green"],
}


def gradient_histogram(report: Report, scale: float | None = None, title: str | None = None) -> Figure:
    """Draw how large the nonzero gradients of a report are, times a scale, in front of what a format does with them.

    A bar counts the gradients between two powers of two. Where the format makes zero, a subnormal number, a normal
    one or infinity of them, bars and background have a colour each; the shares are exact, and of the finite nonzero
    gradients. Triangles stand at the smallest gradient (in the middle of its bar) and the largest, as a bar of a few
    among millions cannot be seen.

    Args:
        report: what `amp_lab.gradient_report` returns.
        scale: the loss scale, a power of two; None: that of the report.
        title: what the picture says; None: the format and the scale.

    Raises:
        TypeError: for what is no report, and a scale that is no number.
        ValueError: for a scale that is no power of two.
    """
    check_report(report, "gradient_histogram")
    scale = report.scale if scale is None else as_float(scale, "scale")
    fates = report.at(scale)  # before there is a figure: a notebook would show it, empty, below the error
    title = wrapped(title or default_title(report, scale))
    figure = plt.figure(figsize=(_WIDTH, _HEIGHT + _LINE * title.count("\n")))
    draw(figure, report, scale, fates, title, limits(report, scale))
    return figure


def check_report(report: Any, function: str) -> None:
    """Raise TypeError for what is no gradient report: a model or gradients themselves, for instance."""
    if not all(hasattr(report, name) for name in ("powers", "counts", "window", "at")):
        raise TypeError(
            f"{function} needs a gradient report, amp_lab.gradient_report(model); this is a {type(report).__name__}"
        )


def default_title(report: Report, scale: float) -> str:
    """Say what is shown, in words."""
    return f"What {report.format_name} makes of the gradients at scale {powers.in_figure(scale)}"


def limits(report: Report, scale: float) -> tuple[float, float]:
    """Return the powers of two to draw between: the whole window, and all gradients at a scale."""
    shift = round(math.log2(scale))
    low, high = window_ends(report)
    if not report.powers:
        return low, high
    first, last = report.powers[0] + shift, report.powers[-1] + shift + 1
    room = _WORD * (max(high, last) - min(low, first))
    return min(low, first - room), max(high, last + room)


def window_ends(report: Report) -> tuple[float, float]:
    """Return the powers of two to draw between, to see the whole window and little more."""
    window = report.window
    return math.log2(window.zero_up_to) - _MARGIN, math.log2(window.overflow_from) + _MARGIN


def draw(
    figure: Figure, report: Report, scale: float, fates: Fates, title: str, ends: tuple[float, float]
) -> None:
    """Draw the histogram into an empty figure, between two powers of two."""
    # Fixed margins: Matplotlib's own layout engines take longer than everything else together, which a slider shows.
    # So letters have a fixed size, too.
    height = figure.get_figheight()
    head = 0.31 + _LINE * title.count("\n")
    axes = figure.add_axes((0.085, 0.55 / height, 0.9, 1 - (0.55 + 0.59 + head) / height))
    regions = _regions(report.window, ends)
    _shade(axes, regions)
    _draw_bars(axes, report, scale, regions)
    smallest = math.log2(report.window.smallest)
    axes.axvline(smallest, **_DOTTED, color=ink())
    _mark_extremes(axes, report, scale, ends)
    axes.set_xlim(ends)
    axes.set_xlabel(_x_label(report, scale), fontsize=10)
    axes.set_ylabel("share of the gradients (%)", fontsize=10)
    axes.tick_params(labelsize=10)
    powers.label(axes.xaxis, *ends, most=15)
    axes.spines[["top", "right"]].set_visible(False)
    _note_what_is_beyond(axes, report, scale, ends)
    _add_legend(figure, fates, smallest, 1 - head / height)
    figure.suptitle(title, x=0.085, y=1 - 0.1 / height, ha="left", va="top", fontsize=12)


def _regions(window: Window, ends: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Return for each fate between which powers of two it rules, inside the ends of the axis."""
    inner = [math.log2(size) for size in (window.zero_up_to, window.normal_from, window.overflow_from)]
    edges = [ends[0], *(min(max(edge, ends[0]), ends[1]) for edge in inner), ends[1]]
    return dict(zip(LOOKS, pairwise(edges), strict=True))


def _shade(axes: Axes, regions: dict[str, tuple[float, float]]) -> None:
    for fate, (left, right) in regions.items():
        axes.axvspan(left, right, color=LOOKS[fate].colour, alpha=0.1, linewidth=0)


def _draw_bars(axes: Axes, report: Report, scale: float, regions: dict[str, tuple[float, float]]) -> None:
    """Draw a bar for each power of two, in the colour of the region that its middle is in."""
    shift = round(math.log2(scale))
    nonzero = max(report.total.nonzero, 1)
    bars = [
        (power + shift, 100 * count / nonzero)
        for power, count in zip(report.powers, report.counts, strict=True)
    ]
    for fate, (left, right) in regions.items():
        look = LOOKS[fate]
        mine = [bar for bar in bars if left <= bar[0] + 0.5 < right]
        axes.bar(
            [power for power, _ in mine],
            [height for _, height in mine],
            width=0.88,
            align="edge",
            color=look.colour if not look.hatch else "white",
            edgecolor=look.colour,
            hatch=look.hatch,
            linewidth=0.8,
        )
    highest = max((height for _, height in bars), default=1.0)
    axes.set_ylim(0, 1.18 * highest)  # above the bars is room for what is beyond the axis
    if not bars:
        axes.text(
            0.5, 0.5, "no finite gradient but zeros", transform=axes.transAxes, ha="center", fontsize=12
        )


def _mark_extremes(axes: Axes, report: Report, scale: float, ends: tuple[float, float]) -> None:
    """Put triangles where the smallest and the largest gradient are."""
    if not report.powers:
        return
    smallest, largest = report.powers[0] + 0.5, math.log2(report.total.largest)
    for size, words, side in ((smallest, "smallest  ", "right"), (largest, "  largest", "left")):
        place = size + math.log2(scale)
        if ends[0] < place < ends[1]:
            at: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "zorder": 3}
            axes.plot(place, 0.035, markeredgecolor=axes.get_facecolor(), **at, **_TRIANGLE)
            # Outwards, where there is no bar.
            axes.text(place, 0.035, words, ha=side, va="center", fontsize=8, clip_on=True, **at)


def _x_label(report: Report, scale: float) -> str:
    total = report.total
    absent = {"exactly 0": total.zeros, "infinite": total.infinite, "NaN": total.nan}
    named = ", ".join(f"{count:,} {name}" for name, count in absent.items() if count)
    more = f" (not shown: {named}, of {total.entries:,})" if named else ""
    return f"size of the gradient{'' if scale == 1 else ' × scale'}{more}"


def _note_what_is_beyond(axes: Axes, report: Report, scale: float, ends: tuple[float, float]) -> None:
    """Say how many gradients are further left or right than the axis reaches."""
    shift = round(math.log2(scale))
    places = [(power + shift, count) for power, count in zip(report.powers, report.counts, strict=True)]
    left = sum(count for place, count in places if place + 0.5 < ends[0])
    right = sum(count for place, count in places if place + 0.5 > ends[1])
    for count, x, words, side in (
        (left, 0.01, "◀ {} further left", "left"),
        (right, 0.99, "{} further right ▶", "right"),
    ):
        if count:
            said = words.format(percent(count / report.total.nonzero))
            axes.text(x, 0.985, said, transform=axes.transAxes, ha=side, va="top", fontsize=9)


def _add_legend(figure: Figure, fates: Fates, smallest: float, top: float) -> None:
    """Write the shares in one row above the picture, where they stay in place whatever the scale.

    What counts some gradients once more stands apart from the four shares that make up the whole.
    """
    keys: list[Any] = [
        Patch(facecolor="white" if look.hatch else look.colour, edgecolor=look.colour, hatch=look.hatch)
        for look in LOOKS.values()
    ]
    names = [f"{look.name}\n{percent(fates.share(fate))}" for fate, look in LOOKS.items()]
    below = f"all under {powers.raised(round(smallest))}\n{percent(fates.share('below_smallest'))}"
    dotted = Line2D([], [], **_DOTTED, color=ink())
    style: dict[str, Any] = {"columnspacing": 1.6, "handlelength": 1.6, "borderaxespad": 0}
    style |= {"frameon": False, "fontsize": 10, "ncols": len(keys)}
    figure.legend(keys, names, loc="upper left", bbox_to_anchor=(0.075, top), **style)
    figure.legend([dotted], [below], loc="upper right", bbox_to_anchor=(0.995, top), **style)


def percent(share: float) -> str:
    """Write a share. "0 %" and "100 %" are exact: what is next to them is said to be."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    if share < 0.0001:
        return "<0.01 %"
    return ">99.99 %" if share > 0.9999 else f"{100 * share:.{1 if 0.01 <= share <= 0.99 else 2}f} %"
