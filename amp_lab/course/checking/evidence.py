"""Proof that a check ran, for `amp-lab check`: the verdict in a form that a program reads, beside what a learner sees.

That no cell failed proves nothing: on a page that says `check = print` no check can fail. So `amp-lab check` counts an
exercise as right only if its check cell showed a `Correct` verdict of this form.
"""

from __future__ import annotations

import re
from typing import Any

from amp_lab.course.catalog import CourseError
from amp_lab.course.judging.verdict import Verdict

VERDICT = "application/vnd.amp-lab.verdict+json"
FIELDS = {"exercise", "kind", "outcome", "sentence", "passed"}
_CHECK = re.compile(r"^check\(", re.MULTILINE)


def asking_for_proof(source: str) -> str:
    """Return the source of a check cell with this module's `check` in place of whatever the page calls `check`.

    Raises LookupError if there is not exactly one call of `check` at the beginning of a line.
    """
    ours, count = _CHECK.subn(
        "import amp_lab.course.checking.evidence as _evidence\n_evidence.check(", source
    )
    if count != 1:
        raise LookupError(f"{count} calls of `check` in the cell {source!r}")
    return ours


def check(exercise_id: str, answer: object) -> None:
    """Do what `amp_lab.course.check` does, and show the verdict as data, too."""
    from IPython.display import display

    from amp_lab.course.judging import exercise

    _refuse_a_replaced_engine(exercise)
    verdict = exercise.grade(exercise_id, answer)
    display({VERDICT: data_of(verdict)}, raw=True)  # type: ignore[no-untyped-call]
    exercise.tell(verdict)


def data_of(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON can hold it."""
    return {
        "exercise": verdict.exercise.id,
        "kind": type(verdict).__name__,
        "outcome": verdict.outcome,
        "sentence": verdict.sentence,
        "passed": verdict.passed,
    }


def _refuse_a_replaced_engine(exercise: Any) -> None:
    for name in ("grade", "judge", "check_of"):
        code = getattr(getattr(exercise, name), "__code__", None)
        if getattr(code, "co_filename", None) != exercise.__file__:
            raise CourseError(
                f"`amp_lab.course.judging.exercise.{name}` is not the course's own: the page replaced it"
            )
