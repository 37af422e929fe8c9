"""Root causes: which findings are only consequences of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from amp_lab.watching.recording.events import Raised
from amp_lab.watching.rules.rule import Finding, Rule, Severity

RAISED = "raised"


class Found(NamedTuple):
    """What a rule has found, with the rule."""

    rule: Rule
    finding: Finding

    @property
    def severity(self) -> Severity:
        return self.rule.severity if self.finding.severity is None else self.finding.severity

    @property
    def began(self) -> int:
        """The step in which it showed first; 0 for what was so from the beginning."""
        return min((event.step for event in self.finding.events), default=0)

    @property
    def order(self) -> tuple[int, int, int, str, str]:
        """Worst first, then what began first, then by name: the same order in every report."""
        first = min((event.number for event in self.finding.events), default=0)
        return -self.severity, self.began, first, self.rule.id, self.finding.sentence


def trees(found: Sequence[Found]) -> list[tuple[Found, list[Found]]]:
    """Return the root causes, worst first, each with all that follows from it, directly or by another consequence."""
    ordered = sorted(found, key=lambda each: each.order)
    parents: dict[int, int] = {}
    for child in reversed(range(len(ordered))):  # of those that explain each other, the first one is the root
        for cause in sorted(range(len(ordered)), key=lambda at: (ordered[at].began, at)):
            if _explains(ordered[cause], ordered[child]) and child not in _line(cause, parents):
                parents[child] = cause
                break
    groups: dict[int, list[int]] = {at: [] for at in range(len(ordered)) if at not in parents}
    for at in sorted(parents):
        groups[_line(at, parents)[-1]].append(at)
    trees = [(ordered[root], [ordered[at] for at in below]) for root, below in groups.items()]
    return sorted(trees, key=lambda tree: (min(each.order[0] for each in (tree[0], *tree[1])), tree[0].order))


def _line(at: int, parents: dict[int, int]) -> list[int]:
    """Return a finding, its cause, the cause of that, and so on up to the root."""
    line = [at]
    while line[-1] in parents:
        line.append(parents[line[-1]])
    return line


def _explains(cause: Found, effect: Found) -> bool:
    """Whether a finding is the cause of another: its rule says so, and it began no later or stands in the same line.

    An exception follows from a finding whose evidence is a call that raised in the same step.
    """
    if cause is effect or cause.rule.id == effect.rule.id:
        return False
    if effect.rule.id == RAISED and _raised(cause.finding, effect.began):
        return True
    if effect.rule.id not in cause.rule.explains:
        return False
    return cause.began <= effect.began or _same_line(cause.finding, effect.finding)


def _raised(finding: Finding, step: int) -> bool:
    """Whether a call that raised in this step is evidence."""
    raised = (each for each in finding.events if isinstance(each, Raised) or getattr(each, "raised", False))
    return any(event.step == step for event in raised)


def _same_line(one: Finding, other: Finding) -> bool:
    lines = [{(e.where.file, e.where.line) for e in each.events[:1] if e.where} for each in (one, other)]
    return bool(lines[0] & lines[1])
