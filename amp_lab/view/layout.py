"""What number formats make of a number, laid out as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from amp_lab.view.fields import INKS, Bits
from amp_lab.view.stored import Stored, decimal

# Fixed widths: columns that moved while somebody types could not be read.
_COLUMNS = {"format": "84px", "stored": "166px", "error": "168px", "neighbours": "auto"}
# Colours other than the fields' are the page's own, so that the table fits JupyterLab's light and dark theme.
_STYLE = """<style>
.amp-lab-floats { line-height: 1.35; }
.amp-lab-floats table { border-collapse: collapse; table-layout: fixed; width: 100%; min-width: 596px; }
.amp-lab-floats :is(th, td) { text-align: left; vertical-align: top; padding: 1px 8px 1px 0; font-weight: normal;
  font-size: 12px; }
.amp-lab-floats tbody tr:first-child > * { border-top: 1px solid rgba(128, 128, 128, 0.4); padding-top: 5px; }
.amp-lab-floats tbody tr:last-child > * { padding-bottom: 5px; }
.amp-lab-floats small { display: block; font-size: 10px; }
.amp-lab-floats table code { font: 11px monospace; background: none; color: inherit; padding: 0; white-space: nowrap; }
.amp-lab-floats table tr:first-child code { font-size: 12px; }
.amp-lab-floats i { font-style: normal; padding: 1px 0; margin-right: 4px; border-radius: 2px; }
.amp-lab-floats p i { padding: 1px 5px; }
</style>"""


def as_text(rows: Iterable[Stored]) -> str:
    """Lay rows out for a terminal, three lines a format."""
    return "\n".join(line for row in rows for line in _lines(row))


def _lines(row: Stored) -> Iterable[str]:
    name, _, more = row.format.name.partition(" (")
    share = f", {row.share_in_words}" if row.share_in_words else ""
    yield f"{name:<9} {' '.join(row.bits)}{f'  ({more}' if more else ''}"
    yield f"{'':9} {decimal(row.value)}, error {row.error_in_words}{share}; {row.fate}"
    yield f"{'':9} between {_neighbour(row.below)} and {_neighbour(row.above)}"


def as_html(rows: Sequence[Stored]) -> str:
    """Lay rows out as a table: for each format a line with its bits, and below it what they stand for.

    Bits are aligned where exponent and fraction meet, as in `bits.bit_layout`.
    """
    names = " ".join(_chip(name, name, field) for field, name in enumerate(Bits._fields))
    heads = "".join(f'<th scope="col" style="width: {width}">{name}</th>' for name, width in _COLUMNS.items())
    widest = max(row.format.exponent_bits for row in rows)
    body = "".join(_html_row(row, widest - row.format.exponent_bits) for row in rows)
    return (
        f'{_STYLE}<div class="amp-lab-floats"><p>{names}</p>'
        f"<table><thead><tr>{heads}</tr></thead>{body}</table></div>"
    )


def _html_row(row: Stored, indent: int) -> str:
    name, _, more = row.format.name.removesuffix(")").partition(" (")
    bits = "".join(_chip(text, Bits._fields[field], field) for field, text in enumerate(row.bits))
    total = f"{sum(map(len, row.bits))} bits"
    cells = (
        f"<code><b>{decimal(row.value)}</b></code><br>{escape(row.fate)}",
        f"<code>{escape(row.error_in_words)}</code><br><code>{escape(row.share_in_words)}</code>",
        f"<code>↑ {_neighbour(row.above)}</code><br><code>↓ {_neighbour(row.below)}</code>",
    )
    return (
        f'<tbody><tr><th scope="rowgroup" rowspan="2"><b>{escape(name)}</b><small>{total}</small>'
        f"<small>{escape(more)}</small></th>"
        f'<td colspan="3"><code style="padding-left: {indent}ch">{bits}</code></td></tr>'
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr></tbody>"
    )


def _chip(text: str, title: str, field: int) -> str:
    ink = INKS[field]
    return f'<i title="{title}" style="background: {ink.cell}; color: {ink.digit}">{escape(text)}</i>'


def _neighbour(value: float) -> str:
    return "none" if value != value else decimal(value)
