"""The report on a training run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amp_lab.watching.recording.events import Raised
from amp_lab.watching.recording.run import Run
from amp_lab.watching.report import as_json, html, text
from amp_lab.watching.report.causes import RAISED
from amp_lab.watching.report.diagnosis import Diagnosis
from amp_lab.watching.rules.rule import Severity


@dataclass(frozen=True, repr=False)
class Report:
    """What was found in a training run. Print it, or leave it as the last line of a cell.

    A report is a collection of its root causes: `for diagnosis in report`, `len(report)`. `report["step-twice"]` and
    `"step-twice" in report` find consequences, too. Whether all is well, `report.ok` says.

    Attributes:
        run: what was recorded.
        diagnoses: the root causes, worst first. What follows from one is listed in its `consequences`.
        failed: rules that could not judge this run, each with the error that it made.
        ended: the exception that ended the run, if it has nothing to do with mixed precision.
    """

    run: Run
    diagnoses: tuple[Diagnosis, ...]
    failed: tuple[tuple[str, str], ...] = ()
    ended: str | None = None

    @property
    def all(self) -> tuple[Diagnosis, ...]:
        """All that was found: each root cause, followed by its consequences."""
        return tuple(each for root in self.diagnoses for each in (root, *root.consequences))

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the root causes."""
        return tuple(each.id for each in self.diagnoses)

    @property
    def worst(self) -> Severity | None:
        """The worst severity found, consequences included; None if nothing was found."""
        return max((each.severity for each in self.all), default=None)

    @property
    def ok(self) -> bool:
        """Whether steps were seen, all rules could judge them, and none found more than a note."""
        return self.run.steps > 0 and not self.failed and (self.worst or Severity.NOTE) < Severity.RISK

    def full(self) -> str:
        """Return the report as text with everything: why each thing is wrong, a right loop, all about consequences."""
        return text.as_text(self, full=True)

    def note(self) -> str | None:
        """Return what explains the exception that ended the run, in at most six lines; None if nothing found does."""
        for each in self.diagnoses:
            told = RAISED in (each.id, *(below.id for below in each.consequences))
            if told or any(isinstance(event, Raised) for event in each.finding.events):
                return text.note(each)
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, texts, numbers, truth values and None."""
        return as_json.as_dict(self)

    def to_json(self) -> str:
        """Return everything as JSON, on one line, for a log."""
        return json.dumps(self.as_dict(), allow_nan=False)

    def __bool__(self) -> bool:
        """Refuse: some would take it for "all is well", some for "something was found".

        Raises:
            TypeError: always.
        """
        raise TypeError("a report is neither true nor false: ask report.ok, or len(report)")

    def __iter__(self) -> Iterator[Diagnosis]:
        return iter(self.diagnoses)

    def __len__(self) -> int:
        return len(self.diagnoses)

    def __contains__(self, id: object) -> bool:
        return any(each.id == id for each in self.all)

    def __getitem__(self, id: str) -> Diagnosis:
        """Return the first diagnosis with this id.

        Raises:
            KeyError: if there is none.
        """
        for each in self.all:
            if each.id == id:
                return each
        found = ", ".join(dict.fromkeys(each.id for each in self.all)) or "nothing"
        raise KeyError(f"no diagnosis {id!r} in this report; found was {found}")

    def __str__(self) -> str:
        return text.as_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html.report_page(self)

    def __rich__(self) -> object:
        from amp_lab.watching.report.with_rich import rich_report  # Rich takes a while to import

        return rich_report(self)
