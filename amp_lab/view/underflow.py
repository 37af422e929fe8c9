"""A map of what FP16 made zero: modules × sampled steps, the darker the more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from amp_lab.view.lettering import wrapped
from amp_lab.view.plots import COLOURS

T = TypeVar("T")

_NAME: Final = 36  # letters of a module's path
_ROWS: Final = 40  # modules that are shown, at most
_STEPS: Final = 12  # steps that are named, at most
_COLOURS: Final = "Oranges"  # from nearly white to dark brown
_NO_LOSS: Final = "FP16 made hardly any gradient zero"
_NOTHING: Final = "#D5D5D5"
_OVERFLOW: Final[dict[str, Any]] = {
    "facecolor": "#BBBBBB",
    "edgecolor": "#333333",
    "hatch": "///",
    "linewidth": 0,
}
_UNTOLD: Final[dict[str, Any]] = {
    "facecolor": "#9ECAE8",
    "edgecolor": "#00496F",
    "hatch": "...",
    "linewidth": 0,
}


class Row(Protocol):
    """One module in one step."""

    @property
    def module(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def share_lost(self) -> float: ...
    @property
    def untold(self) -> bool: ...
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

    The darker, the more: the colours go from nearly white (none) to brown (all), and differ in lightness, so that every
    eye can tell them apart. A triangle: here a module lost 5 % for the first time. Blue with dots: all zero, and nobody
    can tell why. Grey with strokes: the gradients overflowed in this step. Plain grey: no gradient. Of more than 40
    modules those are shown that lost most.

    Args:
        table: an `Underflow` with at least one row.
        title: what the picture says; None: where and when it began.
    """
    modules, steps = _worst(table), table.steps
    rows, columns = _places(modules), _places(steps)
    shown = [row for row in table.rows if row.module in rows]
    shares = np.full((len(modules), len(steps)), np.nan)
    for row in shown:
        if not row.overflowed and not row.untold:
            shares[rows[row.module], columns[row.step]] = 100 * row.share_lost
    height = 2.2 + 0.26 * max(len(modules), 4)
    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    colours = plt.get_cmap(_COLOURS).with_extremes(bad=_NOTHING)
    image = axes.imshow(shares, cmap=colours, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="made zero by FP16\n(% of gradients)", ticks=range(0, 101, 25))
    keys = [
        *_cells(
            axes, [each for each in shown if each.overflowed], rows, columns, "infinite or NaN", _OVERFLOW
        ),
        *_cells(
            axes, [each for each in shown if each.untold], rows, columns, "all 0, cause unknown", _UNTOLD
        ),
        *_beginnings(axes, table, rows, columns),
    ]
    few = (
        "" if len(modules) == len(table.modules) else f" (the worst {len(modules)} of {len(table.modules):,})"
    )
    axes.set(xlabel="sampled training step", ylabel="module, input first" + few)
    axes.set_title(wrapped(title or _title(table)))
    _name_ticks(axes, modules, steps)
    if keys:
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)
    return figure


def _title(table: Table) -> str:
    if table.began:
        first = min(table.began.values())
        of = f"{len(table.began):,} of {len(table.modules):,} modules"
        since = "the first sample" if first == table.steps[0] else f"step {first:,}"
        return f"FP16 made gradients zero in {of}, from {since} on"
    untold = len({row.module for row in table.rows if row.untold})
    return f"All gradients are 0 in {untold} of {len(table.modules):,} modules" if untold else _NO_LOSS


def _worst(table: Table) -> list[str]:
    """Return the modules that lost most, in the model's order."""
    lost = dict.fromkeys(table.modules, (0.0, False))
    for row in table.rows:
        lost[row.module] = max(lost[row.module], (row.share_lost, row.untold))
    worst = set(sorted(lost, key=lambda module: lost[module], reverse=True)[:_ROWS])
    return [module for module in lost if module in worst]


def _places(names: Sequence[T]) -> dict[T, int]:
    return {name: at for at, name in enumerate(names)}


def _cells(
    axes: Axes,
    cells: Sequence[Row],
    rows: Mapping[str, int],
    columns: Mapping[int, int],
    name: str,
    style: Mapping[str, Any],
) -> list[Patch]:
    """Draw cells that have no share, and return their key."""
    for each in cells:
        corner = columns[each.step] - 0.5, rows[each.module] - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, **style))
    return [Patch(label=name, **style)] if cells else []


def _beginnings(axes: Axes, table: Table, rows: Mapping[str, int], columns: Mapping[int, int]) -> list[Any]:
    began = {module: step for module, step in table.began.items() if module in rows}
    if not began:
        return []
    return axes.plot(
        [columns[step] for step in began.values()],
        [rows[module] for module in began],
        marker=">",
        linestyle="",
        markersize=8,
        color=COLOURS["black"],
        markeredgecolor="white",
        label="began (5 % or more)",
    )


def _name_ticks(axes: Axes, modules: Sequence[str], steps: Sequence[int]) -> None:
    axes.set_yticks(range(len(modules)), [_shortened(each) for each in modules])
    every = -(-len(steps) // _STEPS)
    axes.set_xticks(range(0, len(steps), every), [f"{steps[at]:,}" for at in range(0, len(steps), every)])


def _shortened(name: str) -> str:
    name = name.replace("$", r"\$")
    return name if len(name) <= _NAME else "…" + name[1 - _NAME :]
