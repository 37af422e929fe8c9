"""A gradient report as a table: in a terminal, in a notebook, and with Rich."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from amp_lab.watching.wording import scale_in_words, share_in_words, size_in_words

if TYPE_CHECKING:
    from rich.console import Group

    from amp_lab.watching.gradients import Fates, GradientCounts, GradientReport

_HEADS: Final = (
    "parameter",
    "gradients",
    "exactly 0",
    "largest",
    "become 0",
    "subnormal",
    "overflow",
)

_WIDTH: Final = 100  # of sentences


class _Row(NamedTuple):
    name: str
    counts: GradientCounts
    fates: Fates

    @property
    def lost(self) -> int:
        """How many this parameter loses, at either end: what rows are chosen by."""
        return self.fates.zero + self.fates.overflow + self.counts.infinite + self.counts.nan

    def cells(self) -> list[str]:
        counts, fates = self.counts, self.fates
        shares = (fates.zero, fates.subnormal, fates.overflow)
        return [
            self.name,
            f"{counts.entries:,}",
            share_in_words(counts.zeros, counts.entries),
            size_in_words(counts.largest) if counts.nonzero else "–",
            *(share_in_words(each, fates.nonzero) if fates.nonzero else "–" for each in shares),
        ]


def as_text(report: GradientReport, scale: float, limit: int | None) -> str:
    """Lay a report out in columns, names to the left and numbers to the right."""
    table = [list(_HEADS), *(row.cells() for row in _rows(report, scale, limit))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table]
    notes = [textwrap.fill(note, _WIDTH) for note in _notes(report, scale, limit)]
    return "\n".join([_title(report, scale), "", *lines, "", *notes])


def as_html(report: GradientReport, scale: float, limit: int | None) -> str:
    """Lay a report out as an HTML table in the page's own style."""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in _HEADS)
    body = "".join(_html_row(row) for row in _rows(report, scale, limit))
    notes = "<br>".join(map(escape, _notes(report, scale, limit)))
    return (
        f"<div><p>{escape(_title(report, scale))}</p>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><p>{notes}</p></div>"
    )


def _html_row(row: _Row) -> str:
    name, *cells = map(escape, row.cells())
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row" style="text-align: left">{name}</th>{numbers}</tr>'


def as_rich(report: GradientReport, scale: float, limit: int | None) -> Group:
    """Lay a report out for Rich, which the course's command line uses."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_title(report, scale)), title_justify="left")
    for number, head in enumerate(_HEADS):
        table.add_column(head, justify="right" if number else "left")
    for row in _rows(report, scale, limit):
        table.add_row(*map(Text, row.cells()))
    return Group(table, *map(Text, _notes(report, scale, limit)))


def _title(report: GradientReport, scale: float) -> str:
    return (
        f"What {report.format_name} makes of the gradients at scale {scale_in_words(scale)}, "
        "in percent of the finite nonzero ones"
    )


def _rows(report: GradientReport, scale: float, limit: int | None) -> Iterable[_Row]:
    yield _Row("all", report.total, report.total.at(scale))
    rows = [_Row(name, counts, counts.at(scale)) for name, counts in report.parameters.items()]
    if limit is None or len(rows) <= limit:
        yield from rows
    else:
        yield from sorted(rows, key=lambda row: row.lost, reverse=True)[:limit]


def _notes(report: GradientReport, scale: float, limit: int | None) -> Iterable[str]:
    total, fates = report.total, report.total.at(scale)
    left_out = 0 if limit is None else len(report.parameters) - limit
    if left_out > 0:
        yield f"{left_out:,} more parameters, which lose less; table(rows=None) lists all."
    if fates.nonzero:
        smallest = size_in_words(report.window.smallest)
        share = share_in_words(fates.below_smallest, fates.nonzero)
        yield f"Smaller than {report.format_name}'s smallest number, {smallest}: {share}."
    if total.infinite or total.nan:
        yield f"Infinite as they are: {total.infinite:,}; NaN: {total.nan:,}."
    if report.without_gradient:
        yield f"Without a gradient: {_listed(report.without_gradient)}."
    scale_said, reason = report.recommend()
    said = "none" if scale_said is None else scale_in_words(scale_said)
    yield (
        f"Recommended scale: {said}, because {reason}"
        if scale_said
        else f"Recommended scale: {said}: {reason}"
    )


def _listed(names: tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
