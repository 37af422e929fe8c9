"""The loss scale over a training run: when it grew, and which steps it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view import powers
from amp_lab.view.given import numbers
from amp_lab.view.lettering import GRID, dots, ink, label_decades, wrapped
from amp_lab.view.plots import COLOURS

# More crosses than these are drawn small, and more steps as a thin line, or they would hide what is behind them.
_FEW: Final = 50
_FEW_STEPS: Final = 300
_SKIP: Final[dict[str, Any]] = {
    "linestyle": "",
    "marker": "X",
    "color": COLOURS["orange"],
    "zorder": 4,
}
_ABOVE: Final[dict[str, Any]] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.1}


class History(Protocol):
    """What is asked of a scaler's history; that of `amp_lab.scaling` answers."""

    @property
    def scales(self) -> Sequence[float]: ...
    @property
    def skipped(self) -> Sequence[bool]: ...


def scale_history(
    history: History, losses: Iterable[float] | torch.Tensor | None = None, title: str | None = None
) -> Figure:
    """Draw the loss scale of every step on an axis of powers of two, with a cross at each step that was skipped.

    Args:
        history: `scaler.history` of a scaler of `amp_lab.scaling`, or anything with `scales`, the scale with which
            each step was done, and `skipped`, a bool for each.
        losses: the training loss of every step, drawn below; None: no second picture. NaN and inf leave a gap.
        title: what the picture says; None: how many steps were skipped.

    Raises:
        TypeError: for what is no history, and losses that are no numbers.
        ValueError: for a history without a step, or with scales that are no positive numbers (but 0, to which a scale
            can sink, leaves a gap), and if there is not one loss for each step.
    """
    scales, skipped = _steps(history)
    run = None if losses is None else numbers(losses, "losses")
    if run is not None and len(run) != len(scales):
        raise ValueError(
            f"there are {len(run):,} losses and {len(scales):,} steps in the history: one loss for each step is "
            "needed, skipped ones too"
        )
    panels = 1 if run is None else 2
    figure, grid = plt.subplots(
        panels, 1, figsize=(8, 2.9 if run is None else 4.8), sharex=True, squeeze=False, layout="constrained"
    )
    known = [math.log2(scale) for scale in scales if scale]
    draw_scales(grid[0, 0], scales, skipped, (min(known) - 1, max(known) + 1))
    if run is not None:
        _draw_losses(grid[1, 0], run, skipped)
    grid[-1, 0].set_xlabel("training step")
    title = title or f"{sum(skipped):,} of {len(skipped):,} steps skipped"
    figure.suptitle(wrapped(title), x=0.02, ha="left", fontsize=12)
    return figure


def _steps(history: Any) -> tuple[list[float], list[bool]]:
    if not is_history(history):
        raise TypeError(
            "scale_history needs the history of a scaler (its `.history`), with `scales` and `skipped`; "
            f"this is a {type(history).__name__}"
        )
    scales, skipped = numbers(history.scales, "scales"), [bool(each) for each in history.skipped]
    if not scales or len(scales) != len(skipped):
        raise ValueError(
            f"a history has a scale and a bool for each step; this one has {len(scales):,} and {len(skipped):,}. "
            "Call scaler.update() after every step"
        )
    if wrong := [scale for scale in scales if not 0 <= scale < math.inf]:
        raise ValueError(f"a loss scale is a positive number; this history has {wrong[0]:g}")
    if not any(scales):
        raise ValueError("all scales of this history are 0: nothing can be drawn on an axis of powers of two")
    return scales, skipped


def is_history(value: Any) -> bool:
    """Tell a history of scales from everything else."""
    return hasattr(value, "scales") and hasattr(value, "skipped")


def draw_scales(
    axes: Axes, scales: Sequence[float], skipped: Sequence[bool], ends: tuple[float, float]
) -> None:
    """Draw the scale of each step as stairs between two powers of two, and crosses where a step was skipped.

    A scale of 0 has no place on such an axis, and leaves a gap; its cross stands on the bottom edge.
    """
    heights = [math.log2(scale) if scale else math.nan for scale in scales]
    width = 2 if len(heights) <= _FEW_STEPS else 1.2
    stairs: dict[str, Any] = {"drawstyle": "steps-mid", "color": COLOURS["blue"], "linewidth": width}
    axes.plot(heights, label="loss scale", **stairs, **dots(heights))
    places = [step for step, skip in enumerate(skipped) if skip]
    axes.plot(
        places,
        [heights[step] if scales[step] else ends[0] for step in places],
        label=f"skipped ({len(places):,})",
        markersize=9 if len(places) <= _FEW else 5,
        clip_on=not places,  # what is neither clipped nor there has no end for the layout
        markeredgecolor=axes.get_facecolor(),
        **_SKIP,
    )
    axes.set(ylabel="loss scale", ylim=ends)
    powers.label(axes.yaxis, *ends, most=7)
    axes.legend(frameon=False, ncols=3, **_ABOVE)
    tidy(axes, len(heights))


def _draw_losses(axes: Axes, run: Sequence[float], skipped: Sequence[bool]) -> None:
    finite = [value if math.isfinite(value) else math.nan for value in run]
    axes.plot(finite, color=ink(), linewidth=1.4, label="training loss", **dots(finite))
    across: dict[str, Any] = {"color": COLOURS["orange"], "linewidth": 1, "alpha": 0.4, "marker": "None"}
    lines = [axes.axvline(step, **across) for step, skip in enumerate(skipped) if skip]
    if lines:
        lines[0].set_label("skipped step")
        axes.legend(frameon=False, ncols=2, **_ABOVE)
    known = [value for value in finite if not math.isnan(value)]
    if known and min(known) > 0:
        axes.set_yscale("log")
        label_decades(axes.yaxis)
    axes.set_ylabel("training loss")
    tidy(axes, len(run))


def tidy(axes: Axes, steps: int) -> None:
    """Give an axis of steps its ends and a grid."""
    margin = 0.02 * steps + 0.5
    axes.set_xlim(-margin, steps - 1 + margin)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.grid(True, **GRID)
    axes.spines[["top", "right"]].set_visible(False)
