"""Exercise 7.8: name the fault behind each of six logs."""

from __future__ import annotations

from typing import Any

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07.runs import FAULTS, TRUTH


@checker("7.8")
def faults(ask: Ask) -> None:
    """Ask once, and tell of the first run that is wrong."""
    got = ask()
    answers = _answers(ask.call, got)
    for run in TRUTH:
        if run not in answers:
            raise Mistake("run-missing", call=ask.call, got=describe(got), run=run)
    for run in answers:
        if run not in TRUTH:
            raise Mistake("no-such-run", call=ask.call, got=describe(run))
    for run, said in answers.items():
        if not isinstance(said, str) or str(said) not in FAULTS:
            raise Mistake("no-such-fault", call=ask.call, got=describe(said), run=run)
    _expect_each_once(ask.call, answers)
    for run, right in TRUTH.items():
        said = answers[run]
        if said != right:
            raise Mistake(f"run-{run}", call=ask.call, got=f"`{said!r}`", words=FAULTS[said])


def _answers(call: str, got: Any) -> dict[Any, Any]:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a `dict`")
    if not isinstance(got, dict):
        advice = 'Write `{"A": ..., "B": ...}`.'
        words = {"got": describe(got), "kind": kind(got), "want": "a `dict`", "advice": advice}
        raise Mistake("wrong-type", call=call, **words)
    return dict(dict.items(got))


def _expect_each_once(call: str, answers: dict[Any, Any]) -> None:
    runs: dict[str, str] = {}
    for run, said in answers.items():
        if said in runs:
            raise Mistake("said-twice", call=call, got=f"`{said!r}`", first=runs[said], second=run)
        runs[str(said)] = run
