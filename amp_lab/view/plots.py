"""The figures of the lessons. Colours are those of Okabe and Ito, which colour-blind people can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"black": "#000000", "orange": "#D55E00", "blue": "#0072B2", "green": "#009E73", "pink": "#CC79A7"}

# Where curves lie on top of each other, a wide pale line under a thin dashed one shows both.
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#999999", "linewidth": 6.0},
    {"color": COLOURS["orange"], "linewidth": 2.0},
    {"color": COLOURS["blue"], "linewidth": 2.0, "linestyle": (0, (4, 3))},
)


def loss_curves(losses: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw the training loss of up to three runs against the step, the loss on a logarithmic axis.

    Args:
        losses: for each run its name and its loss at every step; the first is drawn as a wide grey line.
        title: what the picture says.

    Raises:
        ValueError: for no run, or for more than three.
    """
    if not 1 <= len(losses) <= len(_STYLES):
        raise ValueError(
            f"loss_curves draws 1 to {len(_STYLES)} runs so that they can be told apart; it was given {len(losses)}"
        )
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for (name, loss), style in zip(losses.items(), _STYLES, strict=False):
        axes.plot(loss, label=f"{name}: ends at {loss[-1]:.3f}", **style)
    axes.set(yscale="log", xlabel="training step", ylabel="training loss (cross-entropy)", title=title)
    _plain_log_labels(axes)
    axes.legend(frameon=False, loc="upper right")
    return figure


def _plain_log_labels(axes: Axes) -> None:
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(True, which="both", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
