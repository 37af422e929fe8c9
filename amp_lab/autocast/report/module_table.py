"""The summary of an x-ray by module, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.autocast.report.summary import Counts, ModuleSummary
from amp_lab.autocast.report.words import bytes_in_words, dtype_in_words
from amp_lab.view.words import columns, name_in_words

if TYPE_CHECKING:
    from rich.table import Table

_HEADS: Final = ("module", "class", "forward", "casts", "copied", "backward", "casts", "copied")
_NUMBERS: Final = {3, 4, 6, 7}  # columns that are aligned to the right


class ModuleTable(tuple[ModuleSummary, ...]):
    """The summaries of modules, parents before their children: a tuple that prints as a table.

    Casts are autocast's and those of the model's code; in the backward pass those of gradients. `copied` is what they
    wrote. What activation checkpointing computed again is in `recomputed` of each summary, not in the table.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        table = [_HEADS, *map(_cells, self)]
        widths = [max(map(columns, column)) for column in zip(*table, strict=True)]
        return "\n".join(_line(cells, widths) for cells in table)

    def _repr_html_(self) -> str:
        heads = "".join(
            f'<th scope="col" style="{_align(place)}">{head}</th>' for place, head in enumerate(_HEADS)
        )
        body = "".join(f"<tr>{_html_cells(each)}</tr>" for each in self)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for place, head in enumerate(_HEADS):
            table.add_column(head, justify="right" if place in _NUMBERS else "left", overflow="fold")
        for each in self:
            table.add_row(*map(Text, _cells(each)))
        return table


def _html_cells(summary: ModuleSummary) -> str:
    cells = enumerate(_cells(summary))
    return "".join(f'<td style="{_align(place)}">{escape(cell)}</td>' for place, cell in cells)


def _align(place: int) -> str:
    return "text-align: right; white-space: nowrap" if place in _NUMBERS else "text-align: left"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        gap = " " * (width - columns(cell))
        padded.append(gap + cell if place in _NUMBERS else cell + gap)
    return "  ".join(padded).rstrip()


def _cells(summary: ModuleSummary) -> tuple[str, ...]:
    name = name_in_words(summary.module) or "(the model)"
    forward, backward = _counts(summary.forward), _counts(summary.backward)
    return (name, name_in_words(summary.module_type), *forward, *backward)


def _counts(found: Counts) -> tuple[str, str, str]:
    said = ", ".join(f"{number:,} {dtype_in_words(dtype)}" for dtype, number in found.dtypes.items())
    made = found.casts - found.cached + found.own
    copied = bytes_in_words(found.copied + found.own_copied) if made else "–"
    return said.replace(" –", " without floats") or "–", f"{made:,}" if made else "–", copied
