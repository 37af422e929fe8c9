"""From a recorded run to a report: ask every rule, and tell root causes from consequences."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from amp_lab.autocast.records import Source
from amp_lab.watching.recording.events import GradientsChanged, Noticed, Raised
from amp_lab.watching.recording.run import Run
from amp_lab.watching.report.causes import RAISED, Found, trees
from amp_lab.watching.report.diagnosis import Diagnosis
from amp_lab.watching.report.fixes import change_of
from amp_lab.watching.report.report import Report
from amp_lab.watching.rules import RULES
from amp_lab.watching.rules.rule import Finding, Rule
from amp_lab.watching.words import LONG, in_words, place_in_words, shortened, steps_in_words

CLOSELY: Final = 3  # steps, from the first, in which everything is looked at: see recording/looks/
STRICT: Final = "AMP_LAB_STRICT_RULES"  # set by tests: a rule that fails is not to be passed over


def diagnose(run: Run, rules: Iterable[Rule] | None = None) -> Report:
    """Judge a run by all rules (or those given) and return the report."""
    found: list[Found] = []
    failed: list[tuple[str, str]] = []
    for rule in RULES.values() if rules is None else rules:
        try:
            for finding in rule.look(run):
                found.append(Found(rule, finding))
        except Exception as error:
            if os.environ.get(STRICT):
                raise
            failed.append((rule.id, shortened(f"{type(error).__name__}: {error}")))
    roots = tuple(_diagnosis(run, root, below) for root, below in trees(found))
    return Report(run, roots, tuple(failed), _ended(run, found))


def _ended(run: Run, found: Sequence[Found]) -> str | None:
    """Say which exception ended the run, if none of the findings is about it."""
    told = [event.number for each in found if each.rule.id == RAISED for event in each.finding.events]
    last = next((event for event in reversed(list(run.of(Raised))) if event.number not in told), None)
    if last is None:
        return None
    where = f" ({place_in_words(last.where, text=False)})" if last.where else ""
    return f"{shortened(f'{last.kind}: {last.message}'.rstrip(': '))}{where}"


def _diagnosis(run: Run, found: Found, below: Iterable[Found] = ()) -> Diagnosis:
    finding = found.finding
    return Diagnosis(
        found.rule.id,
        found.severity,
        found.rule.title,
        shortened(finding.sentence, LONG),
        tuple(_evidence(run, finding)),
        _steps(finding),
        _where(finding),
        change_of(run, finding.fix) if finding.fix else None,
        finding,
        found.rule,
        tuple(_diagnosis(run, each) for each in below),
    )


def _steps(finding: Finding) -> tuple[int, ...]:
    return tuple(sorted({event.step for event in finding.events if event.step > 0}))


def _where(finding: Finding) -> Source | None:
    return next((event.where for event in finding.events if event.where is not None), None)


def _evidence(run: Run, finding: Finding) -> Iterator[str]:
    if steps := _steps(finding):
        which = _of_all(run, steps) or _of_the_first(run, finding, steps)
        yield f"{'steps' if len(steps) > 1 else 'step'} {steps_in_words(steps)}{which}"
    for name, value in finding.values.items():
        if words := in_words(value):
            yield f"{shortened(name)}: {words}"


def _of_the_first(run: Run, finding: Finding, steps: Collection[int]) -> str:
    """Say that something was looked for in the first steps only, where it was seen in each of them."""
    closer = any(
        isinstance(each, Noticed | GradientsChanged) or getattr(each, "unscaled_part", False)
        for each in finding.events
    )
    if closer and run.steps > CLOSELY and list(steps) == list(range(1, CLOSELY + 1)):
        return f" (of {run.steps:,}: only the first {CLOSELY} are looked at so closely)"
    return ""


def _of_all(run: Run, steps: Collection[int]) -> str:
    """Say whether these are all steps, or all that were kept."""
    if len(steps) == run.steps > 1:
        return ", every one"
    kept = run.kept_steps
    return f", every one of the {len(kept):,} looked at" if len(kept) > 1 and kept <= set(steps) else ""
