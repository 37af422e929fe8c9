"""Number formats as rows of bits, aligned where exponent and fraction meet, so that both can be compared."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from amp_lab.view.fields import INKS, Bits, Ink
from amp_lab.view.given import is_format
from amp_lab.view.lettering import wrapped
from amp_lab.view.stored import Layout, NumberFormat, Stored, decimal, store
from amp_lab.view.typed import number

# In inches, as the figure's axes measure.
_WIDTH, _MARGIN, _HEAD = 8.0, 0.12, 0.66
_NAMES, _TOTALS = 1.0, 0.55  # left and right of the bits
_WIDEST_CELL, _CELL_HEIGHT, _GAP = 0.3, 0.24, 0.06
_PITCH, _PITCH_WITH_CAPTION = 0.36, 0.54


class _Grid(NamedTuple):
    """Where bits stand: `boundary` is where exponents end and, a gap later, fractions start."""

    boundary: float
    cell: float

    def starts(self, format: Layout) -> tuple[float, float, float]:
        """Return where a format's sign, exponent and fraction start."""
        exponent = self.boundary - format.exponent_bits * self.cell
        return exponent - _GAP - self.cell, exponent, self.boundary + _GAP


def bit_layout(rows: Sequence[tuple[NumberFormat, float | str | None]], title: str) -> Figure:
    """Draw how number formats divide their bits, and with a value the bits that they store for it.

    All rows share the boundary of exponent and fraction: what reaches further left has more range, what reaches
    further right more precision.

    Args:
        rows: format and value, from top to bottom. A row without a value (None) shows how many bits each field
            has. A value is a float, or a text such as "2**-24" (see `amp_lab.view.typed`).
        title: what the picture says.

    Raises:
        TypeError: for rows that are no pairs of a format and a value, and a value that is neither a number nor a text.
        ValueError: for no rows, a text that is no number, and an int beyond FP64.
    """
    rows = _pairs(rows)
    # Before there is a figure: a notebook would show it, empty, below the error.
    found = [(format, None if value is None else store(format, number(value))) for format, value in rows]
    grid = _grid([format for format, _ in rows])
    pitches = [_PITCH if stored is None else _PITCH_WITH_CAPTION for _, stored in found]
    figure, axes = _canvas(_HEAD + sum(pitches))
    top = figure.get_figheight() - _HEAD
    axes.text(_MARGIN, top + _HEAD - 0.1, wrapped(title, lines=1), va="top", fontsize=12)
    _name_fields(axes, found[0][0], grid, top)
    for (format, stored), pitch in zip(found, pitches, strict=True):
        _draw_row(axes, format, stored, grid, top)
        top -= pitch
    return figure


def _pairs(rows: Any) -> list[tuple[NumberFormat, float | str | None]]:
    found = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str) else [rows]
    if not found:
        raise ValueError("bit_layout draws at least one format: give it rows of (format, value or None)")
    for row in found:
        if not (isinstance(row, tuple | list) and len(row) == 2 and is_format(row[0])):
            raise TypeError(
                "bit_layout needs a list of (format, value or None), as in [(formats.FP16, 0.1)] "
                f"(`from amp_lab import formats`); this is not such a pair: {reprlib.repr(row)}"
            )
    return [(format, value) for format, value in found]


def _grid(formats: Sequence[Layout]) -> _Grid:
    left = 1 + max(format.exponent_bits for format in formats)
    right = max(format.fraction_bits for format in formats)
    room = _WIDTH - 2 * _MARGIN - _NAMES - _TOTALS - 2 * _GAP
    cell = min(_WIDEST_CELL, room / (left + right))
    return _Grid(_MARGIN + _NAMES + left * cell + _GAP, cell)


def _canvas(height: float) -> tuple[Figure, Axes]:
    """Return a figure whose axes measure in inches, from the lower left corner."""
    figure = plt.figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def _name_fields(axes: Axes, first: Layout, grid: _Grid, top: float) -> None:
    """Write what the three fields are above the first row."""
    sign, _, fraction = grid.starts(first)
    # Where the exponent is narrower than its name, the sign's moves over.
    places = (min(sign + grid.cell, grid.boundary - 0.75), grid.boundary, fraction)
    for name, ink, x in zip(Bits._fields, INKS, places, strict=True):
        side = "left" if name == "fraction" else "right"
        axes.text(x, top + 0.06, name, color=ink.cell, ha=side, va="bottom", fontsize=9, weight="bold")


def _draw_row(axes: Axes, format: Layout, stored: Stored | None, grid: _Grid, top: float) -> None:
    widths = (1, format.exponent_bits, format.fraction_bits)
    starts, middle = grid.starts(format), top - _CELL_HEIGHT / 2
    _write_name(axes, format.name, top)
    for field, (start, width, ink) in enumerate(zip(starts, widths, INKS, strict=True)):
        _draw_cells(axes, start, top, width, grid.cell, ink)
        texts = stored.bits[field] if stored else [str(width)]
        step = width * grid.cell / len(texts)
        for place, text in enumerate(texts):
            _write(axes, start + (place + 0.5) * step, middle, text, ink, bold=stored is None)
    end = starts[2] + widths[2] * grid.cell + _GAP
    axes.text(end, middle, f"{sum(widths)} bits", va="center_baseline", fontsize=9)
    if stored is not None:
        axes.text(starts[0], top - _CELL_HEIGHT - 0.03, _caption(stored), va="top", fontsize=8)


def _write_name(axes: Axes, name: str, top: float) -> None:
    """Write a format's name; what it has in parentheses goes below it, small."""
    short, _, more = name.removesuffix(")").partition(" (")
    middle = top - _CELL_HEIGHT / 2
    axes.text(_MARGIN, middle, short, va="center_baseline", fontsize=10, weight="bold")
    axes.text(_MARGIN, middle - 0.09, more, va="top", fontsize=7)


def _draw_cells(axes: Axes, start: float, top: float, count: int, cell: float, ink: Ink) -> None:
    for place in range(count):
        corner = (start + place * cell, top - _CELL_HEIGHT)
        axes.add_patch(Rectangle(corner, cell, _CELL_HEIGHT, facecolor=ink.cell, edgecolor="white", lw=0.6))


def _write(axes: Axes, x: float, y: float, text: str, ink: Ink, *, bold: bool) -> None:
    style: dict[str, Any] = {"fontsize": 8, "family": "monospace"}
    if bold:  # over the lines between cells
        style = {"fontsize": 9, "weight": "bold", "bbox": {"facecolor": ink.cell, "lw": 0, "pad": 0.5}}
    axes.text(x, y, text, ha="center", va="center_baseline", color=ink.digit, **style)


def _caption(stored: Stored) -> str:
    fate = "" if stored.fate == "normal" else f" · {stored.fate}"
    return f"{decimal(stored.value)} · error {stored.error_in_words}{fate}"
