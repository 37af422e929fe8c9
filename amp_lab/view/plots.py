"""The figures of the lessons. Colours are those of Okabe and Ito, which colour-blind people can tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_lab.view.given import named, numbers
from amp_lab.view.lettering import GRID, NAME_WIDTH, dots, label_decades, legend, on_decades, wrapped

COLOURS = {"black": "#000000", "orange": "#D55E00", "blue": "#0072B2", "green": "#009E73", "pink": "#CC79A7"}

# Where curves lie on top of each other, a wide pale line under a thin dashed one shows both.
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#999999", "linewidth": 6.0},
    {"color": COLOURS["orange"], "linewidth": 2.0},
    {"color": COLOURS["blue"], "linewidth": 2.0, "linestyle": (0, (4, 3))},
    {"color": COLOURS["green"], "linewidth": 2.0, "linestyle": (0, (1, 1.5))},
    {"color": COLOURS["pink"], "linewidth": 2.0, "linestyle": (0, (6, 2, 1, 2))},
)


def loss_curves(
    losses: Mapping[str, Iterable[float] | torch.Tensor], title: str, loss: str = "cross-entropy"
) -> Figure:
    """Draw the training loss of up to five runs against the step, the loss on a logarithmic axis.

    A cross marks the step, counted from 0, at which a loss is NaN or inf for the first time. A curve has a gap where a
    loss is zero or negative.

    Args:
        losses: for each run its name and its loss at every step: a list, an array, or a tensor of any dtype and
            device; the first is drawn as a wide grey line.
        title: what the picture says.
        loss: what kind of loss it is; written at its axis.

    Raises:
        TypeError: for what is no mapping, and a run that is not a series of numbers.
        ValueError: for no run, for more than five, and for a run that has no number, or none that can be shown: neither
            a positive one nor NaN or inf.
    """
    named(losses, "loss_curves", "{'FP16': losses}")
    if not 1 <= len(losses) <= len(_STYLES):
        raise ValueError(
            f"loss_curves draws 1 to {len(_STYLES)} runs so that they can be told apart; it was given {len(losses)}"
        )
    # Before there is a figure: a notebook would show it, empty, below the error.
    runs = {name: _numbers(name, run) for name, run in losses.items()}
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axes.set(yscale="log", xlabel="training step", ylabel=wrapped(f"training loss ({loss})", NAME_WIDTH))
    axes.set_title(wrapped(title))
    lines = [_draw(axes, run, style) for run, style in zip(runs.values(), _STYLES, strict=False)]
    last = max(map(len, runs.values())) - 1
    margin = 0.05 * last or 1.0
    axes.set_xlim(-margin, last + margin)  # also for the steps at which there is nothing to draw
    axes.locator_params(axis="x", integer=True)
    label_decades(axes.yaxis)
    axes.grid(True, which="both", **GRID)
    axes.spines[["top", "right"]].set_visible(False)
    names = [f"{wrapped(name, NAME_WIDTH)}: {_in_words(run)}" for name, run in runs.items()]
    legend(axes, lines, names, loc="best")
    return figure


def _numbers(name: str, loss: Iterable[float] | torch.Tensor) -> list[float]:
    run = numbers(loss, f"the losses of {name!r}")
    if not run:
        raise ValueError(f"the losses of {name!r} are empty: append the loss of every step, as loss.item()")
    if not any(value > 0 or math.isnan(value) or math.isinf(value) for value in run):
        raise ValueError(
            f"no loss of {name!r} is positive (the largest is {max(run):g}), and a logarithmic axis shows only those"
        )
    return run


def _first_not_finite(run: list[float]) -> int | None:
    return next((step for step, value in enumerate(run) if not math.isfinite(value)), None)


def _draw(axes: Axes, run: list[float], style: dict[str, Any]) -> Line2D:
    shown = on_decades(run)
    (line,) = axes.plot(shown, **dots(shown), **style)
    first = _first_not_finite(run)
    if first is not None:
        cross: dict[str, Any] = {
            "marker": "X",
            "markersize": 8 + style["linewidth"],
            "color": style["color"],
            "zorder": 3,
        }
        if first > 0 and run[first - 1] > 0:
            axes.plot(first, run[first - 1], **cross)
        else:  # no loss before it to stand beside: on the bottom axis
            axes.plot(first, 0, transform=axes.get_xaxis_transform(), clip_on=False, **cross)
    return line


def _in_words(run: list[float]) -> str:
    first = _first_not_finite(run)
    if first is None:
        return f"ends at {run[-1]:.3g}"
    kind = str(run[first]).replace("nan", "NaN")
    if any(map(math.isfinite, run[first:])):
        return f"first {kind} at step {first}, ends at {run[-1]:.3g}".replace("nan", "NaN")
    return f"{kind} from step {first}"
