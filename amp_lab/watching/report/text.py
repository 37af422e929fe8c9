"""A report as text, for a terminal, a log file, an exception's note."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from amp_lab.autocast.records import Source
from amp_lab.view.words import PRINTED, name_in_words, paragraph
from amp_lab.watching.report import summary
from amp_lab.watching.report.fixes import Change, Hunk
from amp_lab.watching.rules.rule import Severity
from amp_lab.watching.words import line_in_words, place_in_words, shortened

if TYPE_CHECKING:
    from amp_lab.watching.report.diagnosis import Diagnosis
    from amp_lab.watching.report.report import Report

WORDS: Final = {Severity.WRONG: "WRONG", Severity.RISK: "RISK", Severity.NOTE: "NOTE"}
_INDENT: Final = " " * 9  # what stands beside "  where  "
_SHORT: Final = 240  # letters of a line in an exception's note


def as_text(report: Report, full: bool = False) -> str:
    """Lay a report out: the verdict, what was seen, the root causes, and where to read more."""
    blocks = [[paragraph(" ".join([summary.verdict(report), *summary.facts(report)]))]]
    blocks[0] += [paragraph(each, then="  ") for each in summary.remarks(report)]
    blocks += [list(diagnosis_lines(each, full)) for each in report.diagnoses]
    if not full and (hint := summary.hint(report)):
        blocks.append([paragraph(hint)])
    return "\n\n".join("\n".join(block) for block in blocks)


def diagnosis_lines(diagnosis: Diagnosis, full: bool = True) -> Iterator[str]:
    """Yield the lines of a diagnosis. `full`: with why it is wrong, and with all about its consequences."""
    yield f"{WORDS[diagnosis.severity]}: {diagnosis.id}"
    yield paragraph(diagnosis.sentence, "  ", "  ")
    yield from about(diagnosis)
    if full:
        yield from _why(diagnosis)
    elif diagnosis.consequences:
        yield "  so also"
        for each in diagnosis.consequences:
            yield paragraph(f"{each.id}: {each.sentence}", "    - ", "      ")
    for each in diagnosis.consequences if full else ():
        yield ""
        yield from (f"  {line}".rstrip() for line in _consequence(each))


def about(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the lines on evidence, place and fix."""
    if diagnosis.evidence:
        yield from _said("seen", ["; ".join(diagnosis.evidence)])
    if diagnosis.where is not None:
        yield from _where(diagnosis.where)
    if diagnosis.fix is not None:
        yield from _fix(diagnosis.fix, diagnosis.where)


def _said(name: str, sentences: Iterable[str]) -> Iterator[str]:
    """Yield sentences beside a name: the first one in its line."""
    for number, sentence in enumerate(sentences):
        first = f"  {name}".ljust(len(_INDENT)) if number == 0 else _INDENT
        yield paragraph(sentence, first if first.endswith(" ") else f"{first} ", _INDENT)


def _where(where: Source) -> Iterator[str]:
    """Yield the place, and the code beside it, or below, if that is too long."""
    place, code = place_in_words(where, text=False), name_in_words(where.text.strip())
    beside = f"  where  {place}: {code}"
    if not code or len(beside) <= PRINTED:
        yield beside if code else beside.removesuffix(": ")
    else:
        yield f"  where  {place}:"
        yield f"{_INDENT}{code}"


def _fix(change: Change, where: Source | None) -> Iterator[str]:
    yield from _said("fix", [change.words or "Change these lines:"])
    for hunk in change.hunks:
        if not hunk.has(where):
            yield f"{_INDENT}@@ {line_in_words(hunk.where)} @@"
        yield from (f"{_INDENT}{line}" for line in hunk.lines)
    yield from (f"{_INDENT}  {line}" for line in change.code)


def _why(diagnosis: Diagnosis) -> Iterator[str]:
    yield from _said("why", (" ".join(each.split()) for each in diagnosis.why.split("\n\n")))
    for name, loop in (("wrong", diagnosis.wrong), ("right", diagnosis.right)):
        if loop:
            first, *others = textwrap.indent(loop, _INDENT).split("\n")
            yield f"  {name}".ljust(len(_INDENT)) + first.removeprefix(_INDENT)
            yield from others


def _consequence(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"so also: {diagnosis.id}"
    yield paragraph(diagnosis.sentence, "  ", "    ")
    yield from about(diagnosis)


def note(diagnosis: Diagnosis) -> str:
    """Return a diagnosis in at most six lines, for an exception: the sentence, where, and the fix."""
    lines = [f"amp_lab.watch: {_brief(diagnosis.sentence)} ({diagnosis.id})"]
    if diagnosis.where is not None:
        lines.append(f"  where: {place_in_words(diagnosis.where)}")
    if (fix := diagnosis.fix) is not None:
        if fix.words:
            lines.append(f"  fix:   {_brief(fix.words)}")
        changed = [line for hunk in fix.hunks for line in _changed(hunk)]
        lines += [f"    {line[0]} {line[1:].strip()}" for line in changed]
    return "\n".join(lines if len(lines) <= 6 else [*lines[:5], "    … (report() shows all of it)"])


def _changed(hunk: Hunk) -> list[str]:
    """Return the lines that change; where nothing is taken out, behind the line after which they are put in."""
    at = next((at for at, line in enumerate(hunk.lines) if line[0] == "+"), 0)
    before = [] if at == 0 or any(line[0] == "-" for line in hunk.lines) else [hunk.lines[at - 1]]
    return [*before, *(line for line in hunk.lines if line[0] in "+-")]


def _brief(text: str) -> str:
    return shortened(text, _SHORT)
