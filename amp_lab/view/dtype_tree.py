"""A model as a tree of modules, every operator in the column and the colour of the dtype in which it ran.

The column, the name and the colour each say the dtype, so that the figure can be read in grey, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from amp_lab.view.dtype_colours import look
from amp_lab.view.dtype_rows import Arrow, Group, Item, Placed, Row, in_order, place, rows
from amp_lab.view.lettering import ink
from amp_lab.view.text_width import TAKEN, fitting, in_lines, width

# Inches: the figure is laid out by hand, so that no text can meet another.
_ROW: Final = 0.25
_INDENT: Final = 0.14
_LANE: Final = (0.98, 1.5)  # how wide the column of a dtype is, at least, and at most where there is room
_MARK: Final = (0.62, 0.17)
_GAP: Final = 0.35  # between the lanes of two phases
_TREE: Final = (1.9, 3.6)  # how wide the column of names is, at least and at most
_ACROSS: Final = (4.8, 6.6)  # how wide a figure is, at least, and at most where only its title wants more
_EDGE: Final = "#888888"
_SIZE: Final = 8.5  # points
_TITLE: Final = 11.0


def dtype_tree(items: Sequence[Item], phases: Sequence[str], title: str, note: str = "") -> Figure:
    """Draw rows and groups of rows from top to bottom, with a set of columns, one for each dtype, for each phase.

    Args:
        items: the rows; each has as many cells as there are phases.
        phases: the names of the sets of columns, such as ("forward",).
        title: what the picture says.
        note: a sentence below it.

    Raises:
        ValueError: if there is no row, or a row has another number of cells.
    """
    every = list(rows(items))
    if not every:
        raise ValueError("dtype_tree has nothing to draw: it was given no row")
    for row in every:
        if len(row.cells) != len(phases):
            raise ValueError(f"{row.label!r} has {len(row.cells)} cells, for {len(phases)} phases")
    return _Drawing(items, every, phases, title).figure(note)


class _Drawing:
    def __init__(self, items: Sequence[Item], every: list[Row], phases: Sequence[str], title: str):
        self.placed = list(place(items, 0, 0))
        self.height = max(each.bottom for each in self.placed)
        self.phases, self.title = phases, title
        self.columns = [in_order(row.cells[number] for row in every) for number in range(len(phases))]
        widest = max(each.depth * _INDENT + width(each.item.label, _SIZE) for each in self.placed)
        self.tree = min(max(widest + 0.2, _TREE[0]), _TREE[1])
        # Brackets of repeats stand to the right of everything.
        repeats = any(isinstance(each.item, Group) and each.item.times > 1 for each in self.placed)
        self.right = 0.55 if repeats else 0.1
        self.lane_width, lanes = _LANE[0], sum(map(len, self.columns))
        around = (len(phases) - 1) * _GAP + self.right
        least = self.tree + lanes * self.lane_width + around
        longest = max((width(line, _TITLE) for line in title.splitlines()), default=0.0)
        titled = min(longest / TAKEN + 0.01, _ACROSS[1])
        self.across = max(least, titled, _ACROSS[0])
        if lanes:  # they share what the title takes more
            self.lane_width = min(_LANE[1], self.lane_width + (self.across - least) / lanes)
        self.tree = self.across - around - lanes * self.lane_width
        self.width = self.across - self.right

    def lane(self, phase: int, dtype: str) -> float:
        """Return where the middle of a column is."""
        before = sum(map(len, self.columns[:phase])) * self.lane_width + phase * _GAP
        return self.tree + before + (self.columns[phase].index(dtype) + 0.5) * self.lane_width

    def figure(self, note: str) -> Figure:
        across = self.across
        head = 0.42 + 0.2 * (len(self.phases) > 1)
        title = in_lines(self.title, across, _TITLE)
        note = in_lines(note, across, _SIZE - 0.5, lines=5)
        top = head + 0.22 * (title.count("\n") + 1)
        bottom = 0.12 + 0.17 * (note.count("\n") + 1 if note else 0)
        height = self.height * _ROW + top + bottom
        figure = plt.figure(figsize=(across + 0.3, height))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(-0.15, across + 0.15), ylim=(self.height * _ROW + bottom, -top))
        axes.axis("off")
        axes.text(0, -top + 0.08, title, fontsize=_TITLE, va="top")
        axes.text(0, self.height * _ROW + 0.1, note, fontsize=_SIZE - 0.5, va="top")
        self._heads(axes)
        for each in self.placed:
            if isinstance(each.item, Group):
                self._frame(axes, each, each.item)
        self._path(axes)
        for each in self.placed:
            if isinstance(each.item, Row):
                self._row(axes, each, each.item)
        return figure

    def _heads(self, axes: Axes) -> None:
        for number, (phase, dtypes) in enumerate(zip(self.phases, self.columns, strict=True)):
            places = [self.lane(number, dtype) for dtype in dtypes]
            for x, dtype in zip(places, dtypes, strict=True):
                axes.text(x, -0.12, dtype, ha="center", va="bottom", fontsize=_SIZE + 0.5, weight="bold")
                axes.plot(
                    [x, x], [-0.06, self.height * _ROW], color=_EDGE, alpha=0.35, linewidth=0.8, zorder=0.5
                )
            if len(self.phases) > 1 and places:
                middle = (places[0] + places[-1]) / 2
                axes.text(middle, -0.34, phase, ha="center", va="bottom", fontsize=_SIZE + 0.5)

    def _frame(self, axes: Axes, placed: Placed, group: Group) -> None:
        top, bottom = placed.top * _ROW, placed.bottom * _ROW
        if group.label:
            left = placed.depth * _INDENT
            box = FancyBboxPatch(
                (left, top + 0.02),
                self.width - left - 0.02 * placed.depth,
                bottom - top - 0.04,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=_EDGE,
                edgecolor="none",
                alpha=0.1,
                zorder=0.2 + 0.01 * placed.depth,
            )
            axes.add_patch(box)
            self._label(axes, left + 0.07, top + _ROW / 2, group.label, group.kind)
        if group.times > 1:
            x = self.width + 0.1 + 0.04 * placed.depth
            axes.plot([x - 0.05, x, x, x - 0.05], [top + 0.05, top + 0.05, bottom - 0.05, bottom - 0.05], color=ink(),
                      linewidth=1, clip_on=False)  # fmt: skip
            axes.text(x + 0.06, (top + bottom) / 2, f"× {group.times:,}", va="center", fontsize=_SIZE + 0.5)

    def _label(self, axes: Axes, x: float, y: float, name: str, kind: str) -> None:
        room = self.tree - x - 0.1
        shown = fitting(name, room, _SIZE, bold=True)
        axes.text(x, y, shown.replace("$", r"\$"), va="center", fontsize=_SIZE, weight="bold")
        used = width(shown, _SIZE, bold=True) + 0.08
        if kind and width(kind, _SIZE) < self.width - x - used:
            axes.text(x + used, y, kind.replace("$", r"\$"), va="center", fontsize=_SIZE, alpha=0.75)

    def _row(self, axes: Axes, placed: Placed, row: Row) -> None:
        x, y = placed.depth * _INDENT + 0.07, (placed.top + 0.5) * _ROW
        name = fitting(row.label, self.tree - x - 0.1, _SIZE)
        axes.text(x, y, name.replace("$", r"\$"), va="center", fontsize=_SIZE)
        for number, cell in enumerate(row.cells):
            for arrow in cell.casts:
                self._cast(axes, number, arrow, y, cell.ran)
            for dtype, text in cell.ran.items():
                self._mark(axes, self.lane(number, dtype), y, dtype, text, row.failed)

    def _mark(self, axes: Axes, x: float, y: float, dtype: str, text: str, failed: bool) -> None:
        width, height = _MARK
        style: dict[str, Any] = {"facecolor": look(dtype).fill, "edgecolor": look(dtype).fill}
        if failed:
            style = {"facecolor": "white", "edgecolor": "black", "hatch": "xxxx", "linewidth": 1.2}
            text = "error"
        mark = FancyBboxPatch((x - width / 2, y - height / 2), width, height,
                              boxstyle="round,pad=0,rounding_size=0.04", zorder=3, **style)  # fmt: skip
        axes.add_patch(mark)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if failed else None
        colour = "black" if failed else look(dtype).text
        axes.text(
            x,
            y,
            text,
            ha="center",
            va="center_baseline",
            fontsize=_SIZE - 1,
            color=colour,
            zorder=4,
            bbox=box,
        )

    def _cast(self, axes: Axes, phase: int, arrow: Arrow, y: float, marked: Collection[str]) -> None:
        """Draw an arrow from the column of one dtype to that of another; it ends at the edges of marks."""
        start, end = self.lane(phase, arrow.source), self.lane(phase, arrow.target)
        side = 1 if end > start else -1
        edge = side * _MARK[0] / 2
        tail = start + edge if arrow.source in marked else start
        head = end - edge if arrow.target in marked else end
        line = {
            "arrowstyle": "<|-|>" if arrow.both else "-|>",
            "color": ink(),
            "linewidth": 1,
            "mutation_scale": 9,
        }
        axes.annotate("", (head, y), (tail, y), arrowprops=line | {"shrinkA": 0, "shrinkB": 1}, zorder=2)
        if arrow.source not in marked:
            axes.plot(start, y, "o", markersize=3.5, color=ink(), zorder=2)
            self._letters(axes, start, y, -side, arrow.label)
        elif arrow.target not in marked:
            self._letters(axes, end, y, side, arrow.label)
        else:
            axes.text((tail + head) / 2, y - 0.02, arrow.label, ha="center", va="bottom", fontsize=_SIZE - 2)

    def _letters(self, axes: Axes, x: float, y: float, side: int, label: str) -> None:
        align = "left" if side > 0 else "right"
        axes.text(x + side * 0.06, y, label, va="center", ha=align, fontsize=_SIZE - 1.5, zorder=4)

    def _path(self, axes: Axes) -> None:
        """Draw a thin line from mark to mark, in the order of the rows: the eye follows it from dtype to dtype."""
        rows = [each for each in self.placed if isinstance(each.item, Row)]
        for number in range(len(self.phases)):
            points = [
                (self.lane(number, next(iter(each.item.cells[number].ran))), (each.top + 0.5) * _ROW)
                for each in rows
                if isinstance(each.item, Row) and len(each.item.cells[number].ran) == 1
            ]
            if points:
                axes.plot(*zip(*points, strict=True), color=_EDGE, alpha=0.6, linewidth=1.5, zorder=1)
