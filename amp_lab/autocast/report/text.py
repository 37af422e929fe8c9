"""An x-ray as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from amp_lab.autocast.report import rows as lines
from amp_lab.autocast.report.summary import PHASES, of_phase
from amp_lab.view.words import columns, paragraph

if TYPE_CHECKING:
    from amp_lab.autocast.records import Phase
    from amp_lab.autocast.report.xrayed import XRay


def as_text(xray: XRay, selection: lines.Selection) -> str:
    """Lay an x-ray out: what it is, counts, the table, warnings, and the error last."""
    return "\n".join(["\n".join(each) for each in _parts(xray, selection)])


def _parts(xray: XRay, selection: lines.Selection) -> Iterator[list[str]]:
    yield _wrapped(lines.title(xray))
    if not xray.ops:
        yield ["", *_wrapped(lines.NOTHING)]
    else:
        yield [line for phase in PHASES if of_phase(xray.ops, phase) for line in _counted(xray, phase)]
        yield ["", *table_lines(xray, selection)]
    for note in xray.notes:
        yield _wrapped(note)
    for remark in lines.warnings(xray):
        yield ["", str(remark)]
    if xray.error is not None:
        said, explained = lines.error_lines(xray)
        yield ["", *_wrapped(said), explained]


def _counted(xray: XRay, phase: Phase) -> list[str]:
    return _wrapped(lines.phase_in_words(xray, phase), "  ")


def _wrapped(sentence: str, indent: str = "") -> list[str]:
    return paragraph(sentence, then=indent).split("\n")


def table_lines(xray: XRay, selection: lines.Selection) -> list[str]:
    """Return the lines of the table, and what it does not list."""
    rows = list(lines.all_rows(xray, selection))
    listed = rows[: selection.limit]
    table = [list(lines.HEADS), *(_cells(row) for row in listed)]
    widths = [max(columns(cells[place]) for cells in table) for place in range(len(lines.HEADS))]
    # A module's name may run on over the empty cells beside it.
    widths[1] = max([columns(cells[1]) for cells in table if cells[0]])
    said = [line for note in lines.notes(xray, selection, len(listed), len(rows)) for line in _wrapped(note)]
    return [*(_line(cells, widths) for cells in table), "", *said]


def _cells(row: lines.Row) -> list[str]:
    number, label, *others = lines.cells(row)
    return [number, "  " * row.depth + label, *others]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    number, *others = cells
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(others, widths[1:], strict=True)]
    return "  ".join([number.rjust(widths[0]), *padded]).rstrip()
