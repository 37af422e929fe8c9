"""What a log has shown, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from amp_lab.watching.logs.columns import IN_WORDS
from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import counted

NORMAL: Final = (
    "Normal is: the loss is finite and falls; the scale goes down by halves in the first steps, if it began too high, "
    "and then is a sawtooth: it doubles after many good steps and is halved by the skipped step that follows now and "
    "then; the norm does not care about the scale; skipped steps are few."
)
_NARROWEST: Final = 40


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of a log: its findings, what it did, and what the log cannot show."""

    name: str
    rows: int
    first_step: float
    last_step: float
    findings: tuple[Finding, ...]
    seen: tuple[str, ...]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogReport:
    """A diagnosed log. `columns` gives the column's name for each kind of number: "loss", "scale", "norm", …"""

    path: str
    columns: Mapping[str, str]
    runs: tuple[RunReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all runs, run by run."""
        return tuple(finding for run in self.runs for finding in run.findings)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        return self.text(100)

    def text(self, width: int) -> str:
        """Write the report in lines of at most `width` letters, not fewer than 40."""
        return "\n".join(line for line, _ in self.lines(width))

    def lines(self, width: int) -> Iterator[tuple[str, str]]:
        """Yield lines, each with its kind: "title", "probable", "possible", "good", "text"."""
        columns = ", ".join(f"{name} = {IN_WORDS[kind]}" for kind, name in self.columns.items())
        yield from _wrapped(f"{self.path}: {columns}", width, "", "title")
        for note in self.notes:
            yield from _wrapped(f"Note: {note}.", width, "  ", "text")
        for run in self.runs:
            yield "", "text"
            yield from _run_lines(run, width)
        if self.ok:
            yield "", "text"
            yield from _wrapped(NORMAL, width, "", "text")

    def to_json(self) -> str:
        """Write the report as JSON."""
        data = {
            "path": self.path,
            "ok": self.ok,
            "columns": dict(self.columns),
            "notes": list(self.notes),
            "runs": [_run_data(run) for run in self.runs],
        }
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def _run_lines(run: RunReport, width: int) -> Iterator[tuple[str, str]]:
    name = f"{run.name}: " if run.name else ""
    last = f" to {run.last_step:,.0f}" if run.rows > 1 else ""
    span = f"{name}{counted(run.rows, 'row')}, step{'s' if last else ''} {run.first_step:,.0f}{last}"
    yield from _wrapped("; ".join((span, *run.seen)) + ".", width, "", "text")
    for note in run.notes:
        yield from _wrapped(f"Note: {note}.", width, "  ", "text")
    if not run.findings:
        yield "Nothing found.", "good"
    for finding in run.findings:
        yield "", "text"
        yield from _wrapped(f"{finding.sure}  {finding.id}", width, "", finding.sure)
        yield from _wrapped(finding.sentence, width, "  ", "text")
        for each in finding.evidence:
            yield from _wrapped(f"· {each}", width, "    ", "text")
        yield from _wrapped(f"→ {finding.todo}", width, "  ", "text")
    if run.unknown:
        yield "", "text"
        yield "What this log cannot show:", "text"
        for each in run.unknown:
            yield from _wrapped(f"· {each}", width, "    ", "text")


def _wrapped(text: str, width: int, indent: str, kind: str) -> Iterator[tuple[str, str]]:
    lines = textwrap.wrap(
        text,
        max(width, _NARROWEST),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )
    return ((line, kind) for line in lines)


def _run_data(run: RunReport) -> dict[str, Any]:
    return {
        "name": run.name,
        "rows": run.rows,
        "first_step": run.first_step,
        "last_step": run.last_step,
        "seen": list(run.seen),
        "findings": [
            {
                "id": finding.id,
                "sure": finding.sure,
                "sentence": finding.sentence,
                "evidence": list(finding.evidence),
                "todo": finding.todo,
            }
            for finding in run.findings
        ],
        "unknown": list(run.unknown),
        "notes": list(run.notes),
    }
