"""Texts and axes of figures: texts as they are typed, and no wider than their place; ink and grid for every style."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, Final

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator

from amp_lab.view import powers

GRID: Final[dict[str, Any]] = {"color": "#888888", "alpha": 0.28, "linewidth": 0.6}  # on white and on black
TITLE_WIDTH = 72  # characters, in a figure 8 inches wide
NAME_WIDTH = 42  # in a legend, where more words follow


def ink() -> str:
    """Return the colour of text: black in the usual style, white in a dark one. Lines on the background take it."""
    return str(rcParams["text.color"])


def wrapped(text: object, width: int = TITLE_WIDTH, lines: int = 2) -> str:
    """Return a text in lines, ready for Matplotlib: what does not fit ends in "…", and a $ begins no formula."""
    rows = [textwrap.wrap(row, width, max_lines=lines, placeholder=" …") for row in str(text).splitlines()]
    return "\n".join(map("\n".join, rows)).replace("$", r"\$")


def legend(axes: Axes, keys: Iterable[Any], names: Iterable[str], **options: Any) -> Legend:
    """Add a legend. Names are written only afterwards, as Matplotlib leaves out one that begins with "_"."""
    keys = list(keys)
    made = axes.legend(keys, [""] * len(keys), frameon=False, **options)
    for text, name in zip(made.get_texts(), names, strict=True):
        text.set_text(name)
    return made


def label_decades(axis: Axis, write: Callable[[float], str] = powers.plain) -> None:
    """Label a logarithmic axis in plain numbers: also between powers of ten, where it shows fewer than two of them."""
    low, high = axis.get_view_interval()
    axis.set_major_formatter(lambda value, _: write(value))
    if math.floor(math.log10(high)) <= math.ceil(math.log10(low)):
        axis.set_minor_locator(LogLocator(subs=(2, 3, 4, 5, 7) if high < 10 * low else (2, 5)))
        axis.set_minor_formatter(lambda value, _: write(value))
        axis.set_tick_params(which="minor", labelsize="small")
    else:
        axis.set_minor_formatter("")


def on_decades(values: Iterable[float]) -> list[float]:
    """Return what a logarithmic axis can show of numbers; NaN, which is a gap, in place of the others."""
    return [value if 0 < value < math.inf else math.nan for value in values]


def dots(values: list[float]) -> dict[str, Any]:
    """Return the style that shows numbers between gaps: a point without a neighbour makes no line."""
    gaps = [True, *map(math.isnan, values), True]
    alone = [place for place in range(len(values)) if gaps[place : place + 3] == [True, False, True]]
    return {"marker": "o", "markevery": alone} if alone else {"marker": "None"}
