"""A figure of rounding errors: how they grow with the number of terms of a sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from amp_lab.view import powers
from amp_lab.view.given import named, numbers
from amp_lab.view.lettering import GRID, NAME_WIDTH, ink, label_decades, legend, on_decades, wrapped
from amp_lab.view.plots import COLOURS
from amp_lab.view.typed import as_float

_MARKS = (("orange", "o"), ("pink", "s"), ("blue", "^"), ("green", "D"), ("black", "v"))
_MOST_LABELS = 8  # of lengths, which may be long numbers


def error_growth(
    lengths: Iterable[float],
    errors: Mapping[str, Iterable[float]],
    title: str,
    one_rounding: float | None = None,
) -> Figure:
    """Draw the relative errors of sums against the number of their terms, both on logarithmic axes.

    Args:
        lengths: how many terms the sums have, in ascending order.
        errors: for each of up to five ways to add up its name and one relative error for each length, as a share: 0.01
            is one percent. A curve has a gap where an error is zero or not finite; its last error is written beside it.
        title: what the picture says.
        one_rounding: the largest relative error of a single rounding, drawn as a dotted line.

    Raises:
        TypeError: for errors that are no mapping, and for lengths and errors that are no numbers.
        ValueError: for no way to add up, for more than five, for lengths that are not positive and ascending, for a
            way with more or fewer errors than there are lengths, or none that can be drawn, and for `one_rounding` if
            it is not positive and finite.
    """
    terms = numbers(lengths, "lengths")
    named(errors, "error_growth", "{'FP16': errors}")
    shares = {name: numbers(values, f"the errors of {name!r}") for name, values in errors.items()}
    _check(terms, shares)
    if one_rounding is not None and not 0 < as_float(one_rounding, "one_rounding") < math.inf:
        raise ValueError(
            f"one_rounding={one_rounding!r}: it is the largest error of a rounding, such as 2**-11"
        )
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for values, (colour, mark) in zip(shares.values(), _MARKS, strict=False):
        shown = on_decades(values)
        look = ink() if colour == "black" else COLOURS[colour]
        axes.plot(terms, shown, color=look, marker=mark, linewidth=2)
        _write_last(axes, terms, shown, look)
    names = [wrapped(name, NAME_WIDTH) for name in shares]
    if one_rounding is not None:
        axes.axhline(one_rounding, color=ink(), linewidth=1, linestyle=":", marker="None")
        names.append("one rounding, at most")
    axes.set(xscale="log", yscale="log", xlabel="terms of the sum", ylabel="relative error")
    axes.set_title(wrapped(title))
    _label(axes, terms)
    legend(axes, axes.lines, names, loc="best")
    return figure


def _check(lengths: list[float], errors: dict[str, list[float]]) -> None:
    if not 1 <= len(errors) <= len(_MARKS):
        raise ValueError(
            f"error_growth draws 1 to {len(_MARKS)} ways to add up, so that they can be told apart; "
            f"it was given {len(errors)}"
        )
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(set(lengths)):
        raise ValueError(f"the lengths must be positive and ascending, not {list(lengths)}")
    for name, values in errors.items():
        if len(values) != len(lengths):
            raise ValueError(
                f"{name!r} has {len(values)} errors for {len(lengths)} lengths; give one for each"
            )
        if not any(0 < value < math.inf for value in values):
            raise ValueError(
                f"no error of {name!r} is positive and finite, and logarithmic axes show only those"
            )


def _write_last(axes: Axes, lengths: list[float], shown: list[float], colour: str) -> None:
    """Write the number of a curve's last point beside it: logarithmic axes are hard to read between their ticks."""
    length, share = [point for point in zip(lengths, shown, strict=True) if not math.isnan(point[1])][-1]
    axes.annotate(
        _percent(float(f"{share:.2g}")),
        (length, share),
        (7, 0),
        textcoords="offset points",
        va="center",
        color=colour,
    )


def _label(axes: Axes, lengths: list[float]) -> None:
    apart = math.log(lengths[-1] / lengths[0]) / _MOST_LABELS
    labelled = [lengths[0]]
    for length in lengths[1:]:
        if math.log(length / labelled[-1]) >= apart:
            labelled.append(length)
    axes.set_xticks(labelled, [powers.plain(length) for length in labelled])
    axes.xaxis.set_minor_locator(NullLocator())
    label_decades(axes.yaxis, _percent)
    axes.grid(True, which="major", **GRID)
    axes.spines[["top", "right"]].set_visible(False)


def _percent(share: float) -> str:
    return f"{powers.plain(100 * share)} %"
