"""A map of what FP16 made zero: modules × sampled steps, the darker the more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from amp_lab.view.lettering import wrapped
from amp_lab.view.plots import COLOURS

_NAME: Final = 36  # letters of a module's path
_LABELS: Final = 24  # modules that are named, at most
_OVERFLOW: Final = "#BBBBBB"


class Row(Protocol):
    """One module in one step."""

    @property
    def module(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def share_lost(self) -> float: ...
    @property
    def overflowed(self) -> bool: ...


class Table(Protocol):
    """What is asked of `amp_lab.watching.underflow.table.Underflow`."""

    rows: Sequence[Any]

    @property
    def modules(self) -> list[str]: ...
    @property
    def steps(self) -> list[int]: ...
    @property
    def began(self) -> Mapping[str, int]: ...


def underflow_map(table: Table, title: str | None = None) -> Figure:
    """Draw the share of gradients that FP16 made zero, for each module (the input's at the top) and sampled step.

    The colours of "cividis" go from dark blue (none) to yellow (all): they differ in lightness, so that every eye can
    tell them apart. Grey with strokes: the gradients overflowed in this step. White: no gradient. A triangle: here a
    module lost 5% for the first time.

    Args:
        table: an `Underflow` with at least one row.
        title: what the picture says.
    """
    modules, steps = table.modules, table.steps
    shares = np.full((len(modules), len(steps)), np.nan)
    places = {name: at for at, name in enumerate(modules)}, {step: at for at, step in enumerate(steps)}
    for row in table.rows:
        shares[places[0][row.module], places[1][row.step]] = np.nan if row.overflowed else row.share_lost
    height = 1.6 + 0.26 * min(max(len(modules), 4), 40)
    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    image = axes.imshow(
        100 * shares, cmap="cividis", vmin=0, vmax=100, aspect="auto", interpolation="nearest"
    )
    figure.colorbar(image, ax=axes, label="made zero by FP16 (% of the module's gradients)")
    keys = [*_overflows(axes, table, *places), *_beginnings(axes, table, *places)]
    axes.set(xlabel="sampled training step", ylabel="module, in the model's order")
    axes.set_title(wrapped(title or "Gradients that FP16 made zero"))
    _name_ticks(axes, modules, steps)
    if keys:
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)
    return figure


def _overflows(axes: Axes, table: Table, rows: Mapping[str, int], columns: Mapping[int, int]) -> list[Any]:
    style: dict[str, Any] = {"facecolor": _OVERFLOW, "edgecolor": "#555555", "hatch": "///", "linewidth": 0}
    places = [(columns[row.step], rows[row.module]) for row in table.rows if row.overflowed]
    for across, down in places:
        axes.add_patch(Rectangle((across - 0.5, down - 0.5), 1, 1, **style))
    return [Patch(label="infinite or NaN", **style)] if places else []


def _beginnings(axes: Axes, table: Table, rows: Mapping[str, int], columns: Mapping[int, int]) -> list[Any]:
    if not table.began:
        return []
    return axes.plot(
        [columns[step] for step in table.began.values()],
        [rows[module] for module in table.began],
        marker=">",
        linestyle="",
        markersize=7,
        color="white",
        markeredgecolor=COLOURS["black"],
        label="began (5 % or more)",
    )


def _name_ticks(axes: Axes, modules: Sequence[str], steps: Sequence[int]) -> None:
    every = -(-len(modules) // _LABELS)
    named = range(0, len(modules), every)
    axes.set_yticks(list(named), [_shortened(modules[at]) for at in named])
    every = -(-len(steps) // 10)
    axes.set_xticks(range(0, len(steps), every), [f"{steps[at]:,}" for at in range(0, len(steps), every)])


def _shortened(name: str) -> str:
    name = name.replace("$", r"\$")
    return name if len(name) <= _NAME else "…" + name[1 - _NAME :]
