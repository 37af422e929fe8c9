"""A figure of rounding errors: how they grow with the number of terms of a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from amp_lab.view.plots import COLOURS

_MARKS = (("orange", "o"), ("pink", "s"), ("blue", "^"), ("green", "D"), ("black", "v"))


def error_growth(
    lengths: Sequence[int],
    errors: Mapping[str, Sequence[float]],
    title: str,
    one_rounding: float | None = None,
) -> Figure:
    """Draw the relative errors of sums against the number of their terms, both on logarithmic axes.

    Args:
        lengths: how many terms the sums have, in ascending order.
        errors: for each of up to five ways to add up its name and one relative error for each length, as a share: 0.01
            is one percent. A curve has a gap where an error is zero or not finite.
        title: what the picture says.
        one_rounding: the largest relative error of a single rounding, drawn as a dotted line.

    Raises:
        ValueError: for no way to add up, for more than five, for lengths that are not positive and ascending, and for a
            way with more or fewer errors than there are lengths, or none that can be drawn.
    """
    _check(lengths, errors)
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for (name, values), (colour, mark) in zip(errors.items(), _MARKS, strict=False):
        shown = [value if 0 < value < math.inf else math.nan for value in values]
        axes.plot(lengths, shown, color=COLOURS[colour], marker=mark, linewidth=2, label=name)
    if one_rounding is not None:
        axes.axhline(one_rounding, color="black", linewidth=1, linestyle=":", label="one rounding, at most")
    axes.set(xscale="log", yscale="log", xlabel="terms of the sum", ylabel="relative error", title=title)
    _label(axes, lengths)
    axes.legend(frameon=False, loc="best")
    return figure


def _check(lengths: Sequence[int], errors: Mapping[str, Sequence[float]]) -> None:
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


def _label(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
