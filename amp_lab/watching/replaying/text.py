"""A report on an overflow as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from amp_lab.view.words import paragraph
from amp_lab.watching.replaying.told import facts, head

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport

_WIDTH: Final = 12  # of the names on the left


def as_text(report: OverflowReport) -> str:
    """Lay a report out: the cause, the sentence, and what was seen, a name on the left of each."""
    return "\n".join([head(report), paragraph(report.sentence, "  ", "  "), *_lines(report)])


def _lines(report: OverflowReport) -> Iterator[str]:
    for name, told in facts(report):
        for number, each in enumerate(told):
            first = f"  {name}".ljust(_WIDTH) if number == 0 else " " * _WIDTH
            yield paragraph(each, first, " " * _WIDTH)
