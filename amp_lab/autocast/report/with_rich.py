"""An x-ray for Rich, which the course's command line uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from amp_lab.autocast.report import rows as lines
from amp_lab.autocast.report.summary import PHASES, of_phase
from amp_lab.view.dtype_colours import look

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

_COLOURED = lines.HEADS.index("ran in")


def as_rich(xray: XRay, selection: lines.Selection) -> Group:
    """Lay an x-ray out as a Rich table, its dtypes on their colours."""
    parts: list[RenderableType] = [Text(lines.title(xray), style="bold")]
    if not xray.ops:
        parts.append(Text(lines.NOTHING))
    else:
        parts += [Text(lines.phase_in_words(xray, each)) for each in PHASES if of_phase(xray.ops, each)]
        parts += _table(xray, selection)
    parts += map(Text, xray.notes)
    parts += lines.warnings(xray)
    parts += [Text(each, style="red") for each in lines.error_lines(xray)]
    return Group(*parts)


def _table(xray: XRay, selection: lines.Selection) -> list[RenderableType]:
    rows = list(lines.all_rows(xray, selection))
    listed = rows[: selection.limit]
    table = Table()
    for head in lines.HEADS:
        table.add_column(head, justify="right" if head == "#" else "left", overflow="fold")
    for row in listed:
        table.add_row(*_cells(row))
    return [table, *map(Text, lines.notes(xray, selection, len(listed), len(rows)))]


def _cells(row: lines.Row) -> list[Text]:
    cells = [Text(cell) for cell in lines.cells(row)]
    cells[1] = Text("  " * row.depth + row.label, style="" if row.op else "bold")
    if row.op and row.op.dtype:
        colours = look(cells[_COLOURED].plain)
        cells[_COLOURED].stylize(f"{colours.text} on {colours.fill}")
    return cells
