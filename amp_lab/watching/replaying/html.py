"""A report on an overflow in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.view.words import name_in_words
from amp_lab.watching.replaying.ids import CAUSES
from amp_lab.watching.replaying.told import facts
from amp_lab.watching.report.html import page
from amp_lab.watching.words import place_in_words

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport

# Of the colours of Okabe and Ito: good, a thing that mends itself, a fault. The word beside says the same.
_COLOURS: Final = {"none": "#009E73", "scale-too-large": "#56B4E9"}
_FAULT: Final = "#D55E00"
_OPEN: Final = ("where", "do", "scale")  # the others are folded


def as_html(report: OverflowReport) -> str:
    """Lay a report out: the cause, the sentence, where, and what to do; the numbers are opened on a click."""
    colour = _COLOURS.get(report.cause, _FAULT)
    word = f'<span class="word" style="background: {colour}; color: #000000">{escape(report.cause)}</span>'
    inner = f"<p>{word}{escape(CAUSES[report.cause])}</p><p>{escape(report.sentence)}</p>{''.join(_parts(report))}"
    return page(f'<div class="box" style="border-color: {colour}">{inner}</div>')


def _parts(report: OverflowReport) -> Iterator[str]:
    told = dict(facts(report))
    if report.source is not None:
        code = name_in_words(report.source.text.strip())
        place = escape(place_in_words(report.source, text=False))
        yield f"<p><b>Where:</b> {place}{f': <code>{escape(code)}</code>' if code else ''}</p>"
    for title, name in (("Loss scale", "scale"), ("What to do", "do")):
        if name in told:
            yield f"<p><b>{title}:</b> {escape(' '.join(told[name]))}</p>"
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{'<br>'.join(map(escape, words))}</td></tr>"
        for name, words in told.items()
        if name not in _OPEN
    )
    yield f"<details><summary>What was seen</summary><table>{rows}</table></details>"
