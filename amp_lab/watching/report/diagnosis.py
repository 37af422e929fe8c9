"""A diagnosis: one root cause, with its evidence, its place, its fix, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from amp_lab.autocast.records import Source
from amp_lab.watching.report.docs import Told, told
from amp_lab.watching.report.fixes import Change
from amp_lab.watching.rules.rule import Finding, Rule, Severity


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What is wrong with a training loop. Print it; `why` and `right` tell more.

    Attributes:
        id: the rule's name: "clip-before-unscale".
        severity: NOTE, RISK or WRONG.
        title: the rule's title: what it is called.
        sentence: what is wrong here, with the numbers seen.
        evidence: what was seen, a line each: the steps, and values.
        steps: the numbers of the steps that are evidence.
        where: the line of your code where it shows first; None where no line is to blame.
        fix: the change of your code that mends it; None where the rule knows none.
        consequences: what else was found that follows from this.
        finding: what the rule found, with the events.
        rule: the rule.
    """

    id: str
    severity: Severity
    title: str
    sentence: str
    evidence: tuple[str, ...]
    steps: tuple[int, ...]
    where: Source | None
    fix: Change | None
    finding: Finding = field(repr=False)
    rule: Rule = field(repr=False)
    consequences: tuple[Diagnosis, ...] = ()

    @cached_property
    def _told(self) -> Told:
        return told(self.rule)

    @property
    def why(self) -> str:
        """Why it is wrong, whatever the numbers."""
        return self._told.why

    @property
    def wrong(self) -> str:
        """A short loop with this mistake."""
        return self._told.wrong[0][1] if self._told.wrong else ""

    @property
    def right(self) -> str:
        """The same loop without it."""
        return self._told.right[0][1] if self._told.right else ""

    def __str__(self) -> str:
        from amp_lab.watching.report.text import diagnosis_lines

        return "\n".join(diagnosis_lines(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from amp_lab.watching.report.html import diagnosis_page

        return diagnosis_page(self)

    def __rich__(self) -> object:
        from amp_lab.watching.report.with_rich import rich_diagnosis

        return rich_diagnosis(self)
