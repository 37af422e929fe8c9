"""A report for Rich, in colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amp_lab.autocast.records import Source
from amp_lab.view.words import name_in_words
from amp_lab.watching.report import summary
from amp_lab.watching.report.fixes import Change
from amp_lab.watching.report.text import WORDS
from amp_lab.watching.rules.rule import Severity
from amp_lab.watching.words import line_in_words, place_in_words

if TYPE_CHECKING:
    from amp_lab.watching.report.diagnosis import Diagnosis
    from amp_lab.watching.report.report import Report

_STYLES: Final = {
    Severity.WRONG: "bold red",
    Severity.RISK: "bold yellow",
    Severity.NOTE: "bold cyan",
}
_SIGNS: Final = {"+": "green", "-": "red"}


def rich_report(report: Report) -> Group:
    """Lay a report out, as its text does."""
    healthy = "bold green" if report.ok and not report.diagnoses else "bold"
    parts: list[RenderableType] = [Text(summary.verdict(report), style=healthy)]
    parts += [Text(each) for each in (" ".join(summary.facts(report)), *summary.remarks(report)) if each]
    for each in report.diagnoses:
        parts += [Text(), rich_diagnosis(each)]
    if hint := summary.hint(report):
        parts += [Text(), Text(hint, style="dim")]
    return Group(*parts)


def rich_diagnosis(diagnosis: Diagnosis) -> Group:
    """Lay one diagnosis out: names on the left, what there is to say about each beside them."""
    head = Text.assemble(
        (f"{WORDS[diagnosis.severity]}: ", _STYLES[diagnosis.severity]), (diagnosis.id, "bold")
    )
    about = Table.grid(padding=(0, 2, 0, 0))
    about.add_column(style="bold", no_wrap=True)
    about.add_column()
    for name, told in _parts(diagnosis):
        about.add_row(name, told)
    parts: list[RenderableType] = [Text(diagnosis.sentence)]
    if about.row_count:
        parts.append(about)
    return Group(head, *(Padding(each, (0, 0, 0, 2)) for each in parts))


def _parts(diagnosis: Diagnosis) -> Iterator[tuple[str, RenderableType]]:
    if diagnosis.evidence:
        yield "seen", Text("; ".join(diagnosis.evidence))
    if (where := diagnosis.where) is not None:
        code = name_in_words(where.text.strip())
        yield "where", Text.assemble(place_in_words(where, text=False), (f"\n{code}" if code else "", "bold"))
    if diagnosis.fix is not None:
        yield "fix", Group(*_fix(diagnosis.fix, where))
    for number, each in enumerate(diagnosis.consequences):
        yield "" if number else "so also", Text.assemble((f"{each.id}: ", "bold"), each.sentence)


def _fix(change: Change, where: Source | None) -> Iterator[Text]:
    yield Text(change.words or "Change these lines:")
    for hunk in change.hunks:
        if not hunk.has(where):
            yield Text(f"@@ {line_in_words(hunk.where)} @@", style="dim")
        yield from (Text(line, style=_SIGNS.get(line[0], "")) for line in hunk.lines)
    yield from (Text(f"  {line}") for line in change.code)
