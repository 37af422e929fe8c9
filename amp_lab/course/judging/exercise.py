"""The exercise engine: `check("4.1", answer)` and what stands behind it.

A lesson's `checks.py` registers one function per exercise with `@checker("4.1")`. It is handed an `Ask`, calls the
learner's code through it, compares what comes back (see `expect`), and returns if all is well or raises `Mistake`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from amp_lab.course import catalog
from amp_lab.course.catalog import Exercise, UnknownExercise
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.defaults import as_after_import
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained, Guard
from amp_lab.course.judging.show import show
from amp_lab.course.judging.verdict import (
    CheckFailed,
    Correct,
    NotAttempted,
    NotChecked,
    Note,
    Raised,
    Stopped,
    Verdict,
    Wrong,
)
from amp_lab.course.learner import progress, workspace

Check = Callable[[Ask], None]
_CHECKS: dict[str, Check] = {}
_HINTS_SHOWN: dict[str, int] = {}
_LINES_SHOWN = 10  # of what a learner's code printed


class NotHere(Exception):
    """Raised in a check: this machine cannot judge the answer; the message says what is missing."""


def checker(exercise_id: str) -> Callable[[Check], Check]:
    """Register the decorated function as the check of an exercise; each exercise has one."""

    def register(function: Check) -> Check:
        if exercise_id in _CHECKS:
            raise ValueError(f"exercise {exercise_id} has a check already: {_CHECKS[exercise_id].__name__}")
        _CHECKS[catalog.exercise(exercise_id).id] = function
        return function

    return register


def check_of(exercise_id: str) -> Check:
    """Return the check of an exercise, importing its lesson's `checks.py` when it is first asked for."""
    lesson = catalog.lesson_of(exercise_id)
    with as_after_import():  # a check may keep tensors that it makes when it is imported
        importlib.import_module(f"amp_lab.course.lessons.l{lesson.number}.checks")
    return _CHECKS[exercise_id]


def judge(exercise: Exercise, check: Check, answer: object, *, limit_s: float = 20.0) -> Verdict:
    """Run one check on one answer, from PyTorch's own defaults.

    `limit_s` bounds the seconds spent in the learner's code, all calls together.
    """
    with as_after_import():
        return _judge(exercise, check, answer, Guard(limit_s))


def _judge(exercise: Exercise, check: Check, answer: object, guard: Guard) -> Verdict:
    unfit = _unfit(exercise, answer)
    if unfit is not None:
        return _wrong(exercise, unfit, guard)
    ask = Ask(exercise, answer, guard)
    try:
        check(ask)
    except Mistake as mistake:
        return _wrong(exercise, mistake, guard)
    except NotHere as reason:
        return NotChecked(exercise, str(reason), notes=_notes(guard))
    except Contained as contained:
        return _not_finished(exercise, contained, ask, guard)
    return Correct(exercise, exercise.why, notes=_notes(guard))


def _unfit(exercise: Exercise, answer: object) -> Mistake | None:
    """Return what is wrong with an answer that is not of the kind that the exercise asks for, or None."""
    seen = {"got": describe(answer), "kind": kind(answer), "id": exercise.id}
    if not exercise.file:
        return None if callable(answer) else Mistake("not-a-function", function=exercise.function, **seen)
    if not isinstance(answer, (str, Path)):
        return Mistake("not-a-file", file=exercise.file, **seen)
    return None if Path(answer).is_file() else Mistake("no-such-file", **seen | {"got": f"`{answer}`"})


def grade(exercise_id: str, answer: object) -> Verdict:
    """Judge an answer and return the `Verdict`, printing and raising nothing.

    Raises `catalog.UnknownExercise` for an id that no lesson has.
    """
    return judge(catalog.exercise(exercise_id), check_of(exercise_id), answer)


def check(exercise_id: str, answer: object) -> None:
    """Judge an answer and say what came of it.

    Shows why a right answer is right. A wrong one, one that raised an error and a stub raise `CheckFailed`, whose
    message stands in place of a traceback, so that "Run All" stops at the first open exercise and nbval counts a
    failed cell. In the learner's workspace a success is remembered, for `amp-lab progress`.
    """
    verdict = grade(exercise_id, answer)
    if isinstance(verdict, Correct):
        progress.record(exercise_id)
    tell(verdict)


def tell(verdict: Verdict) -> None:
    """Show a verdict, or raise it as `CheckFailed` if there is something left to do."""
    if not isinstance(verdict, (Correct, NotChecked)):
        raise CheckFailed(verdict) from None
    show(verdict.markdown)


def hint(exercise_id: str, number: int | None = None) -> None:
    """Show a hint for an exercise: the next one each time, or the one asked for (1, 2 or 3)."""
    exercise = catalog.exercise(exercise_id)
    last = len(exercise.hints)
    if number is None:
        number = min(_HINTS_SHOWN.get(exercise_id, 0) + 1, last)
    if type(number) is not int or not 1 <= number <= last:
        raise UnknownExercise(f"exercise {exercise_id} has hints 1 to {last}; there is no hint {number!r}")
    _HINTS_SHOWN[exercise_id] = number
    more = (
        f'`hint("{exercise_id}")` again shows the next.'
        if number < last
        else f'`solution("{exercise_id}")` shows the answer.'
    )
    show(f"**Hint {number} of {last} for exercise {exercise_id}.** {exercise.hints[number - 1]}\n\n{more}")


def solution(exercise_id: str) -> None:
    """Show the course's own solution of an exercise, and why it is right."""
    exercise, code = catalog.exercise(exercise_id), workspace.solution(exercise_id)
    show(f"**A solution of exercise {exercise_id}.** {exercise.why}\n\n```python\n{code}\n```")


def _wrong(exercise: Exercise, mistake: Mistake, guard: Guard) -> Wrong:
    sentence = exercise.diagnosis(mistake.diagnosis).sentence.format_map(mistake.observed)
    diagnosis, observed = mistake.diagnosis, mistake.observed
    return Wrong(exercise, sentence, notes=_notes(guard), diagnosis=diagnosis, observed=observed)


def _not_finished(exercise: Exercise, contained: Contained, ask: Ask, guard: Guard) -> Verdict:
    error = contained.error
    if isinstance(error, NotImplementedError) and not error.args and not ask.returned:
        return NotAttempted(exercise, notes=_notes(guard))
    sentence = f"{contained.sentence} It was called as {ask.call}."
    outcome = Raised if contained.fault == "exception" else Stopped
    return outcome(exercise, sentence, notes=_notes(guard), fault=contained.fault)


def _notes(guard: Guard) -> tuple[Note, ...]:
    notes = []
    if guard.output:
        lines = guard.output.splitlines(keepends=True)
        shown = "".join(lines[:_LINES_SHOWN])
        more = len(guard.output) - len(shown) + guard.output_dropped
        dropped = f"\n(and {more:,} more characters)" if more else ""
        notes.append(Note("Your code printed:", shown.rstrip() + dropped))
    if guard.leftover_threads:
        names = ", ".join(guard.leftover_threads)
        notes.append(
            Note(f"Your code left a thread running ({names}): end it with `join()` before you return.")
        )
    if not guard.time_limited:
        notes.append(Note(Guard.NO_LIMIT))
    return tuple(notes)
