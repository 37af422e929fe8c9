"""A ladder: how much faster a training step is on each rung, and which rungs a device lacks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view.given import finite, named
from amp_lab.view.lettering import GRID, ink, wrapped
from amp_lab.view.plots import COLOURS

_REASON: Final = 92  # letters of a reason, beside the axis
_NAME: Final = 26  # letters of a rung's name in a line


def ladder_bars(
    speedups: Mapping[str, float | None],
    why_not: Mapping[str, str],
    noise: float,
    title: str,
) -> Figure:
    """Draw one horizontal bar for each rung, the first on top; a rung without a number says why instead.

    Args:
        speedups: by the name of the rung, how many times as fast as the first it is; None: not measured.
        why_not: for rungs without a number, the reason.
        noise: how far the first lies from itself; a grey band around 1 shows it.
        title: what the picture says.

    Raises:
        TypeError: for what is no mapping.
        ValueError: if nothing was measured.
    """
    named(speedups, "ladder_bars", "{'FP32': 1.0, 'FP16': 1.8}")
    measured = {name: value for name, value in speedups.items() if value is not None}
    if not measured:
        raise ValueError("ladder_bars was given no rung that was measured")
    if bad := [each for each in (*measured.values(), noise) if not finite(each)]:
        raise ValueError(f"ladder_bars draws ratios, finite and not negative, not {bad[0]!r}")
    longest = max(1.0, *measured.values())
    figure, axes = plt.subplots(figsize=(8, 1.5 + 0.52 * len(speedups)), layout="constrained")
    axes.axvspan(1 - noise, 1 + noise, color="#BBBBBB", alpha=0.6, linewidth=0, label="FP32 against itself")
    axes.axvline(1, color=ink(), linewidth=1)
    for place, (name, value) in enumerate(speedups.items()):
        _rung(axes, place, value, why_not.get(name, ""), longest)
    axes.set_yticks(range(len(speedups)), [textwrap.fill(name, _NAME) for name in speedups])
    axes.set_ylim(len(speedups) - 0.5, -0.5)  # the first on top; room for a rung without a bar
    axes.set(xlim=(0, 1.15 * longest), xlabel="speed, FP32 = 1 (more is faster)")
    axes.set_title(wrapped(title))
    axes.grid(True, axis="x", **GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower right", frameon=False, fontsize=9)
    return figure


def _rung(axes: Axes, place: int, value: float | None, reason: str, longest: float) -> None:
    if value is None:
        text = textwrap.fill(
            wrapped(f"not measured: {reason}", _REASON, lines=1) or "not measured", _REASON // 2 + 6
        )
        axes.text(longest / 80, place, text, va="center", fontsize=8, style="italic")
        return
    axes.barh(
        place,
        value,
        height=0.6,
        color="#777777" if place == 0 else COLOURS["blue" if value >= 1 else "orange"],
    )
    # Its number may stand across the line at 1.
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axes.text(value + longest / 80, place, f"{value:.2f} ×", va="center", bbox=behind)
