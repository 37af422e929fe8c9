"""A gradient report as a table: in a terminal, in a notebook, and with Rich."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amp_lab.view.words import columns, name_in_words
from amp_lab.watching.counting.wording import scale_in_words, share_in_words, size_in_words

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
# A long name must not push the numbers out of sight, and a narrow page must not squeeze it to a letter per line.
_NAME_STYLE: Final = "text-align: left; min-width: 8em; max-width: 24em; overflow-wrap: anywhere"


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
            name_in_words(self.name),
            f"{counts.entries:,}",
            share_in_words(counts.zeros, counts.entries),
            _largest_in_words(counts),
            *(share_in_words(each, fates.nonzero) if fates.nonzero else "–" for each in shares),
        ]


def _largest_in_words(counts: GradientCounts) -> str:
    if not counts.nonzero:
        return "–"
    # Where subnormal numbers are flushed, Python reads 0 for a size that FP64 has no normal number for.
    return size_in_words(counts.largest) if counts.largest else "under 2.23e-308"


def as_text(report: GradientReport, scale: float, limit: int | None) -> str:
    """Lay a report out in columns, names to the left and numbers to the right."""
    table = [list(_HEADS), *(row.cells() for row in _rows(report, scale, limit))]
    widths = [max(map(columns, column)) for column in zip(*table, strict=True)]
    lines = [_line(row, widths) for row in table]
    notes = [textwrap.fill(note, _WIDTH) for note in _notes(report, scale, limit)]
    return "\n".join([_title(report, scale), "", *lines, "", *notes])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = row
    gap = " " * (widths[0] - columns(name))
    return "  ".join([name + gap, *map(str.rjust, numbers, widths[1:])])


def as_html(report: GradientReport, scale: float, limit: int | None) -> str:
    """Lay a report out as an HTML table in the page's own style."""
    first, *others = map(escape, _HEADS)
    heads = f'<th scope="col" style="text-align: left">{first}</th>'
    heads += "".join(f'<th scope="col">{head}</th>' for head in others)
    body = "".join(_html_row(row) for row in _rows(report, scale, limit))
    notes = "<br>".join(map(escape, _notes(report, scale, limit)))
    return (
        f"<div><p>{escape(_title(report, scale))}</p>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><p>{notes}</p></div>"
    )


def _html_row(row: _Row) -> str:
    name, *cells = map(escape, row.cells())
    numbers = "".join(f'<td style="white-space: nowrap">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row" style="{_NAME_STYLE}">{name}</th>{numbers}</tr>'


def as_rich(report: GradientReport, scale: float, limit: int | None) -> Group:
    """Lay a report out for Rich, which the course's command line uses."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_title(report, scale)), title_justify="left")
    for number, head in enumerate(_HEADS):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
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
    rows = _parameters(report, scale)
    yield from rows if limit is None or len(rows) <= limit else _by_loss(rows)[:limit]


def _parameters(report: GradientReport, scale: float) -> list[_Row]:
    return [_Row(name, counts, counts.at(scale)) for name, counts in report.parameters.items()]


def _by_loss(rows: list[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: row.lost, reverse=True)


def checked_limit(rows: Any) -> int | None:
    """Return how many parameters to list.

    Raises:
        TypeError: if it is neither a whole number nor None.
        ValueError: if it is negative.
    """
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int)):
        raise TypeError(f"rows={rows!r}: it is how many parameters to list, such as 20, or None for all")
    if rows is not None and rows < 0:
        raise ValueError(f"rows={rows}: it is how many parameters to list, 0 or more, or None for all")
    return rows


def _notes(report: GradientReport, scale: float, limit: int | None) -> Iterable[str]:
    total, fates = report.total, report.total.at(scale)
    if limit is not None and len(report.parameters) > limit:
        yield _left_out(_by_loss(_parameters(report, scale))[limit:], limit)
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
    yield f"Recommended scale: {said}, because {reason}"


def _left_out(rows: list[_Row], listed: int) -> str:
    """Say how many parameters a table leaves out, and that they lose nothing, or no more than any that it lists."""
    one = len(rows) == 1
    which = f"{len(rows):,}{' more' if listed else ''} parameter{'' if one else 's'}"
    if not any(row.lost for row in rows):
        what = f"{'loses' if one else 'lose'} nothing"
    elif listed:
        what = f"{'loses' if one else 'lose'} no more than any of these"
    else:
        what = f"{'is' if one else 'are'} not listed"
    return f"{which} {what}; table(rows=None) lists all."


def _listed(names: tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(name_in_words, names[:most])) + more
