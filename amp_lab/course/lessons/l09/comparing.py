"""Runs in several precisions, several seeds of each, side by side: as a table, and drawn.

`found` is on this page a dict from "fp32", "fp16", "bf16" to the histories of `amp_lab.Trainer`, one for each seed, in
the same order of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.train.training.history import History
from amp_lab.view.lettering import ink
from amp_lab.view.plots import COLOURS

Found = Mapping[str, Sequence[History]]

# The curves lie on each other: a wide pale line below, thinner ones on top of it.
_LOOKS: Final[tuple[dict[str, Any], ...]] = (
    {"color": "#999999", "linewidth": 3.6},
    {"color": COLOURS["orange"], "linewidth": 1.8},
    {"color": COLOURS["blue"], "linewidth": 1.8, "linestyle": (0, (4, 3))},
)


def dev_losses(runs: Sequence[History]) -> torch.Tensor:
    """Return the dev loss of each run after each of its epochs: (seeds, epochs)."""
    return torch.tensor([[each.dev_loss for each in run.epochs] for run in runs])


def table(found: Found, baseline: str = "fp32") -> str:
    """Return for each precision the mean and the spread over seeds at the end, and how far each seed is from FP32's."""
    title = "minus " + baseline.upper() + ", seed by seed"
    lines = [f"       dev loss      std   accuracy   {title}"]
    reference = dev_losses(found[baseline])[:, -1]
    for name, runs in found.items():
        last = dev_losses(runs)[:, -1]
        apart = "" if name == baseline else ", ".join(f"{each:+.4f}" for each in (last - reference).tolist())
        accuracy = sum(run.epochs[-1].metrics["accuracy"] for run in runs) / len(runs)
        numbers = f"{name.upper()}   {last.mean():8.4f} {last.std():8.4f} {accuracy:10.3f}   {apart}"
        lines.append(numbers.rstrip())
    return "\n".join(lines)


def draw_runs(found: Found, by: Literal["epoch", "step"], loss: str = "loss") -> Figure:
    """Draw how the runs went, and where each seed ended.

    Args:
        found: the histories; at most three precisions.
        by: "epoch" for the dev loss after each epoch, "step" for the training loss of each step.
        loss: what is written beside the curves.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    _draw_curves(left, found, by)
    left.set(xlabel="epochs done" if by == "epoch" else "training step", ylabel=loss)
    ends = torch.stack([dev_losses(runs)[:, -1] for runs in found.values()])
    names = [name.upper() for name in found]
    right.plot(names, ends.numpy(), "o-", color=ink(), markersize=4, linewidth=1.2)
    right.set(ylabel="dev loss at the end", title="each line is a seed")
    right.margins(x=0.15)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_curves(axes: Axes, found: Found, by: Literal["epoch", "step"]) -> None:
    for (name, runs), look in zip(found.items(), _LOOKS, strict=False):
        curves = dev_losses(runs) if by == "epoch" else torch.tensor([run.losses for run in runs])
        places = range(1, curves.shape[1] + 1)
        axes.plot(places, curves.mean(0).numpy(), label=name.upper(), **look)
        low, high = curves.amin(0).numpy(), curves.amax(0).numpy()
        axes.fill_between(places, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes.set_title("mean, and from best to worst seed")
    axes.locator_params("x", integer=True)
    axes.legend(frameon=False)
