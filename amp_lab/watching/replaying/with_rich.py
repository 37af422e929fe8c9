"""A report on an overflow for Rich, in colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amp_lab.watching.replaying.ids import CAUSES
from amp_lab.watching.replaying.told import facts

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport

_STYLES: Final = {"none": "bold green", "scale-too-large": "bold cyan"}


def as_rich(report: OverflowReport) -> Group:
    """Lay a report out, as its text does."""
    style = _STYLES.get(report.cause, "bold red")
    about = Table.grid(padding=(0, 2, 0, 0))
    about.add_column(style="bold", no_wrap=True)
    about.add_column()
    for name, told in facts(report):
        about.add_row(name, Text("\n".join(told)))
    head = Text.assemble((report.cause, style), f": {CAUSES[report.cause]}")
    return Group(head, *(Padding(each, (0, 0, 0, 2)) for each in (Text(report.sentence), about)))
