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
from amp_lab.view.plots import COLOURS

# More crosses than these are drawn small, or they would hide the stairs.
_FEW: Final = 50
_SKIP: Final[dict[str, Any]] = {
    "linestyle": "",
    "marker": "X",
    "color": COLOURS["orange"],
    "markeredgecolor": "white",
    "zorder": 4,
}


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
    draw_scales(grid[0, 0], scales, skipped)
    if run is not None:
        _draw_losses(grid[1, 0], run, skipped)
    grid[-1, 0].set_xlabel("training step")
    figure.suptitle(
        title or f"{sum(skipped):,} of {len(skipped):,} steps skipped", x=0.02, ha="left", fontsize=12
    )
    return figure


def numbers(values: Any, what: str) -> list[float]:
    """Return numbers as a list of floats: a list, an array, a tensor of any dtype and device.

    Raises:
        TypeError: for anything else.
    """
    try:
        found = values.tolist() if isinstance(values, torch.Tensor) else values
        return [float(each.detach() if isinstance(each, torch.Tensor) else each) for each in found]
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} must be one number for each step ({error})") from None


def _steps(history: Any) -> tuple[list[float], list[bool]]:
    """Return scales and skips; a scale of 0 as NaN, for which there is no place on a logarithmic axis."""
    if not (hasattr(history, "scales") and hasattr(history, "skipped")):
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
    return [scale or math.nan for scale in scales], skipped


def draw_scales(axes: Axes, scales: Sequence[float], skipped: Sequence[bool]) -> None:
    """Draw the scale of each step as stairs in powers of two, and crosses where a step was skipped."""
    heights = [math.log2(scale) for scale in scales]
    axes.plot(
        range(len(heights)),
        heights,
        drawstyle="steps-mid",
        color=COLOURS["blue"],
        linewidth=2,
        label="loss scale",
        marker="o" if len(heights) == 1 else None,
    )
    size = 9 if sum(skipped) <= _FEW else 6
    places = [step for step, skip in enumerate(skipped) if skip]
    axes.plot(
        places,
        [heights[step] for step in places],
        label=f"skipped ({len(places):,})",
        markersize=size,
        **_SKIP,
    )
    known = [height for height in heights if not math.isnan(height)]
    low, high = min(known) - 1, max(known) + 1
    axes.set(ylabel="loss scale", ylim=(low, high))
    powers.label(axes.yaxis, low, high, most=7)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.1)
    tidy(axes, len(heights))


def _draw_losses(axes: Axes, run: Sequence[float], skipped: Sequence[bool]) -> None:
    finite = [value if math.isfinite(value) else math.nan for value in run]
    for step in (step for step, skip in enumerate(skipped) if skip):
        axes.axvline(step, color=COLOURS["orange"], linewidth=1, alpha=0.4)
    axes.plot(range(len(finite)), finite, color=COLOURS["black"], linewidth=1.4)
    known = [value for value in finite if not math.isnan(value)]
    if known and min(known) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}" if max(known) < 10 * min(known) else "")
    axes.set_ylabel("training loss")
    tidy(axes, len(run))


def tidy(axes: Axes, steps: int) -> None:
    """Give an axis of steps its ends and a grid."""
    margin = 0.02 * steps + 0.5
    axes.set_xlim(-margin, steps - 1 + margin)
    axes.locator_params(axis="x", integer=True)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
