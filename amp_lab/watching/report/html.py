"""A report in a notebook: a box for each root cause, with its evidence, its fix, and its consequences to be opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING, Final

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

# The colours of Okabe and Ito, which colour-blind readers tell apart, with ink that can be read on them; what was
# found is told by a word, too. All else is in the page's own colours, so that it fits light and dark themes.
_COLOURS: Final = {
    Severity.WRONG: ("#D55E00", "#000000"),
    Severity.RISK: ("#E69F00", "#000000"),
    Severity.NOTE: ("#56B4E9", "#000000"),
}
_CODE: Final = re.compile(r"`([^`]+)`")
_GOOD: Final = "#009E73"
_STYLE: Final = """<style>
.amp-lab-watch { line-height: 1.45; font-size: 13px; max-width: 60em; overflow-wrap: anywhere; }
.amp-lab-watch p { margin: 4px 0; }
.amp-lab-watch .box { border-left: 4px solid; padding: 2px 0 2px 10px; margin: 10px 0; }
.amp-lab-watch .box .box { margin: 6px 0 6px 4px; }
.amp-lab-watch .word { padding: 1px 7px; border-radius: 3px; font-weight: bold; font-size: 12px; margin-right: 6px; }
.amp-lab-watch details { margin: 4px 0; }
.amp-lab-watch summary { cursor: pointer; }
.amp-lab-watch ul { margin: 2px 0 2px 18px; padding: 0; }
.amp-lab-watch pre { margin: 4px 0; padding: 6px 8px; overflow-x: auto; white-space: pre; font-size: 12px;
  line-height: 1.4; background: rgba(128, 128, 128, 0.12); color: inherit; }
.amp-lab-watch pre .out { background: rgba(213, 94, 0, 0.28); display: inline-block; min-width: 100%; }
.amp-lab-watch pre .in { background: rgba(0, 158, 115, 0.28); display: inline-block; min-width: 100%; }
.amp-lab-watch pre .at { opacity: 0.7; }
.amp-lab-watch table { border-collapse: collapse; margin: 4px 0; }
.amp-lab-watch table :is(th, td) { text-align: left; vertical-align: top; padding: 2px 12px 2px 0; font-size: 12px;
  white-space: normal; max-width: none; }
</style>"""


def page(inner: str) -> str:
    """Put what a notebook shows into the report's own style."""
    return f'{_STYLE}<div class="amp-lab-watch">{inner}</div>'


def report_page(report: Report) -> str:
    """Lay a report out: the verdict, what was seen, and a box for each root cause."""
    seen = [" ".join(summary.facts(report)), *summary.remarks(report)]
    said = "".join(f"<p>{escape(each)}</p>" for each in seen if each)
    said = f"<p><b>{escape(summary.verdict(report))}</b></p>{said}"
    if not report.diagnoses and report.ok:
        said = f'<div class="box" style="border-color: {_GOOD}">{said}</div>'
    return page(said + "".join(map(_box, report.diagnoses)))


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Lay one diagnosis out."""
    return page(_box(diagnosis))


def word(severity: Severity) -> str:
    """Return the word for a severity, on its colour."""
    fill, ink = _COLOURS[severity]
    return f'<span class="word" style="background: {fill}; color: {ink}">{WORDS[severity]}</span>'


def prose(text: str) -> str:
    """Return a text with what stands between `backticks` as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _box(diagnosis: Diagnosis) -> str:
    inner = "".join([*_parts(diagnosis), *_details(diagnosis)])
    return f'<div class="box" style="border-color: {_COLOURS[diagnosis.severity][0]}">{inner}</div>'


def _parts(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"<p>{word(diagnosis.severity)}<code>{escape(diagnosis.id)}</code></p>"
    yield f"<p>{prose(diagnosis.sentence)}</p>"
    if diagnosis.where is not None:
        place, code = place_in_words(diagnosis.where, text=False), name_in_words(diagnosis.where.text)
        code = f": <code>{escape(code)}</code>" if code else ""
        yield f"<p><b>Where:</b> {escape(place)}{code}</p>"
    if diagnosis.fix is not None:
        yield _fix(diagnosis.fix, diagnosis.where)


def _details(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what is opened on a click."""
    if diagnosis.evidence:
        items = "".join(f"<li>{escape(each)}</li>" for each in diagnosis.evidence)
        yield _folded("What was seen", f"<ul>{items}</ul>")
    why = "".join(f"<p>{prose(' '.join(each.split()))}</p>" for each in diagnosis.why.split("\n\n"))
    yield _folded(
        "Why, with a right loop", f"{why}{_loop('Wrong', diagnosis.wrong)}{_loop('Right', diagnosis.right)}"
    )
    if diagnosis.consequences:
        names = ", ".join(each.id for each in diagnosis.consequences)
        yield _folded(f"So also: {names}", "".join(map(_box, diagnosis.consequences)))


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _loop(title: str, code: str) -> str:
    return f"<p>{title}:</p><pre>{escape(code)}</pre>" if code else ""


def _fix(change: Change, where: Source | None) -> str:
    words = f"<p><b>Fix:</b> {prose(change.words or 'change these lines.')}</p>"
    lines: list[str] = []
    for hunk in change.hunks:
        lines += [] if hunk.has(where) else [_span("at", f"@@ {line_in_words(hunk.where)} @@")]
        lines += _signed(hunk.lines)
    lines += map(escape, change.code)
    code = "\n".join(lines)
    return f"{words}<pre>{code}</pre>" if lines else words


def _signed(lines: Iterable[str]) -> Iterator[str]:
    kinds = {"+": "in", "-": "out"}
    return (_span(kinds[line[0]], line) if line[0] in kinds else escape(line) for line in lines)


def _span(kind: str, text: str) -> str:
    return f'<span class="{kind}">{escape(text)}</span>'
