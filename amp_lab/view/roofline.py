"""A roofline: how fast an operator can be, by how many operations it does with each byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view.given import finite, named
from amp_lab.view.lettering import GRID, ink, label_decades, wrapped
from amp_lab.view.plots import COLOURS

_LINES: Final[dict[str, dict[str, Any]]] = {
    "FP32": {"color": "#777777", "linestyle": "-"},
    "TF32": {"color": COLOURS["blue"], "linestyle": (0, (5, 2))},
    "FP16": {"color": COLOURS["orange"], "linestyle": "-"},
    "BF16": {"color": COLOURS["green"], "linestyle": (0, (1, 1.5))},
}
_MARKERS: Final = "osD^vPXh<>p*"
_TERA: Final = 1e12


def roofline(
    name: str,
    bandwidth: float,
    roofs: Mapping[str, float],
    marks: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Draw roofs: from the left all rise with the bandwidth, and each bends where its peak is reached.

    Args:
        name: of the device.
        bandwidth: of its memory, in bytes/s.
        roofs: peaks in FLOP/s, by the name of the format: FP32, TF32, FP16, BF16.
        marks: points by name: FLOP/byte and FLOP/s; twelve at most.

    Raises:
        ValueError: for no roof or one of another name, too many marks, and for numbers that are not positive.
    """
    named(roofs, "roofline", "{'FP32': 19.5e12, 'FP16': 312e12}")
    marks = marks or {}
    if not roofs or set(roofs) - set(_LINES) or len(marks) > len(_MARKERS):
        raise ValueError(
            f"roofline draws roofs of {', '.join(_LINES)} and up to {len(_MARKERS)} marks, not "
            f"{', '.join(roofs) or 'no roof'} and {len(marks)} marks"
        )
    every = (bandwidth, *roofs.values(), *(each for mark in marks.values() for each in mark))
    if not all(finite(each) and each > 0 for each in every):
        raise ValueError(
            "roofline has logarithmic axes: bandwidth, peaks and marks are finite and larger than 0"
        )
    ridges = [peak / bandwidth for peak in roofs.values()]
    at = [mark[0] for mark in marks.values()]
    left, right = min([*ridges, *at]) / 8, max([*ridges, *at]) * 8
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    for label, peak in roofs.items():
        _roof(axes, label, peak, bandwidth, (left, right), _LINES[label])
    for (label, mark), marker in zip(marks.items(), _MARKERS, strict=False):
        axes.plot(*_tera(mark), marker=marker, linestyle="", markersize=7, color=ink(), label=label, zorder=3)
    _finish(axes, name, bandwidth)
    if marks:
        figure.legend(loc="outside lower center", ncols=min(3, len(marks)), frameon=False, fontsize=9)
    return figure


def _tera(mark: tuple[float, float]) -> tuple[float, float]:
    return mark[0], mark[1] / _TERA


def _roof(
    axes: Axes,
    label: str,
    peak: float,
    bandwidth: float,
    ends: tuple[float, float],
    style: Mapping[str, Any],
) -> None:
    left, right = ends
    ridge = peak / bandwidth
    axes.plot(
        [left, ridge, right], [bandwidth * left / _TERA, peak / _TERA, peak / _TERA], linewidth=2, **style
    )
    axes.annotate(
        f"{label}: {peak / _TERA:.4g} TFLOP/s, from {ridge:.3g} FLOP/byte on",
        (right, peak / _TERA),
        xytext=(-4, 6),  # above the marks, which stand on the roof
        textcoords="offset points",
        ha="right",
        color=style["color"],
    )


def _finish(axes: Axes, name: str, bandwidth: float) -> None:
    axes.set(xlabel="arithmetic intensity (FLOP per byte moved)", ylabel="can be reached (TFLOP/s)")
    axes.set_title(
        wrapped(f"{name}: on the slope memory is what one waits for ({bandwidth / 1e9:,.0f} GB/s)")
    )
    axes.margins(y=0.12)
    for axis in (axes.xaxis, axes.yaxis):
        label_decades(axis)
    axes.grid(True, which="major", **GRID)
    axes.spines[["top", "right"]].set_visible(False)
