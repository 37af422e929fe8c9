"""A training run at a glance: loss of the training and of the dev set and, where there is one, the loss scale below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view.lettering import dots, ink, label_decades, wrapped
from amp_lab.view.plots import COLOURS
from amp_lab.view.scale_history import draw_scales, tidy

_SMOOTH_FROM: Final = 200  # steps; from there on a mean of each 1/50 of them is drawn over the losses
_ABOVE: Final[dict[str, Any]] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.1}


class Step(Protocol):
    """What is asked of the record of a step."""

    @property
    def epoch(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def scale(self) -> float: ...
    @property
    def skipped(self) -> str: ...


class Epoch(Protocol):
    """What is asked of the record of an epoch."""

    @property
    def epoch(self) -> int: ...
    @property
    def dev_loss(self) -> float | None: ...


class History(Protocol):
    """What is asked of a run's history; that of `amp_lab.Trainer` answers."""

    @property
    def steps(self) -> Sequence[Step]: ...
    @property
    def epochs(self) -> Sequence[Epoch]: ...


def training_history(history: History, title: str | None = None) -> Figure:
    """Draw the training loss of every step and the dev loss at the end of every epoch.

    Below stand the loss scale and the skipped steps, if the run had a loss scale. Losses that are NaN or infinite leave
    a gap; steps that were skipped for such a loss are marked on its lower edge.

    Args:
        history: `trainer.history`, or what `trainer.fit` returns.
        title: what the picture says; None: how many steps and epochs, and how many steps were skipped.

    Raises:
        TypeError: for what is no history of a Trainer.
        ValueError: for a history without a step.
    """
    if not hasattr(history, "steps") or not hasattr(history, "epochs"):
        raise TypeError(
            f"training_history needs the history of a Trainer; this is a {type(history).__name__}"
        )
    steps = history.steps
    if not steps:
        raise ValueError("this history has no step yet: call trainer.fit(train_loader) first")
    scales = [step.scale for step in steps]
    scaled = any(scale != 1 for scale in scales)
    panels = 2 if scaled else 1
    figure, grid = plt.subplots(
        panels, 1, figsize=(8, 4.8 if scaled else 3.2), sharex=True, squeeze=False, layout="constrained"
    )
    _draw_losses(grid[0, 0], history)
    if scaled:
        known = [math.log2(scale) for scale in scales if scale]
        ends = (min(known, default=0) - 1, max(known, default=1) + 1)
        draw_scales(grid[1, 0], scales, [step.skipped == "overflow" for step in steps], ends)
    grid[-1, 0].set_xlabel("training step")
    figure.suptitle(wrapped(title or _title(history)), x=0.02, ha="left", fontsize=12)
    return figure


def _draw_losses(axes: Axes, history: History) -> None:
    losses = [step.loss if math.isfinite(step.loss) else math.nan for step in history.steps]
    many = len(losses) >= _SMOOTH_FROM
    pale: dict[str, Any] = {"alpha": 0.35, "linewidth": 0.8} if many else {"linewidth": 1.4}
    axes.plot(losses, color=ink(), label="training loss, each step", **pale, **dots(losses))
    if many:
        places, means = _means(losses, max(1, len(losses) // 50))
        axes.plot(places, means, color=ink(), linewidth=1.6, label="mean of a 50th of the run")
    ends, values = _dev_losses(history)
    if ends:
        look: dict[str, Any] = {"marker": "o", "color": COLOURS["blue"], "markersize": 4}
        axes.plot(ends, values, label="dev loss, end of each epoch", **look)
    lost = [place for place, step in enumerate(history.steps) if step.skipped == "loss"]
    if lost:
        mark: dict[str, Any] = {"linestyle": "", "marker": "X", "color": COLOURS["orange"], "clip_on": False}
        edge = axes.get_xaxis_transform()
        axes.plot(lost, [0.0] * len(lost), transform=edge, label=f"loss not finite ({len(lost):,})", **mark)
    known = [value for value in (*losses, *values) if not math.isnan(value)]
    if known and min(known) > 0:
        axes.set_yscale("log")
        label_decades(axes.yaxis)
    axes.set_ylabel("loss")
    axes.legend(frameon=False, ncols=2 if lost else 3, **_ABOVE)
    tidy(axes, len(losses))


def _dev_losses(history: History) -> tuple[list[int], list[float]]:
    """Return the last step of each epoch that has a dev loss, and this loss."""
    last = {step.epoch: place for place, step in enumerate(history.steps)}
    found = [
        (last[each.epoch], each.dev_loss if math.isfinite(each.dev_loss) else math.nan)
        for each in history.epochs
        if each.dev_loss is not None and each.epoch in last
    ]
    return [place for place, _ in found], [value for _, value in found]


def _means(values: Sequence[float], size: int) -> tuple[list[float], list[float]]:
    """Return the middle and the mean of each `size` values; NaN does not count."""
    places, means = [], []
    for start in range(0, len(values), size):
        part = [value for value in values[start : start + size] if not math.isnan(value)]
        if part:
            places.append(start + (size - 1) / 2)
            means.append(math.fsum(part) / len(part))
    return places, means


def _title(history: History) -> str:
    steps, skipped = len(history.steps), sum(bool(step.skipped) for step in history.steps)
    epochs = len(history.epochs)
    said = f"{steps:,} step{'s' * (steps != 1)} in {epochs:,} finished epoch{'s' * (epochs != 1)}"
    return f"{said}; {skipped:,} steps skipped" if skipped else said
