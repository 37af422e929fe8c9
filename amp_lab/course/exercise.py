"""The exercise engine: `check("4.1", answer)` and what stands behind it.

A lesson's `checks.py` registers one function per exercise with `@checker("4.1")`. It is handed an `Ask`, calls the
learner's code through it, compares what comes back (see `expect`), and returns if all is well or raises `Mistake`.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from amp_lab.course import catalog, source, workspace
from amp_lab.course.catalog import Exercise
from amp_lab.course.expect import Mistake, describe, kind
from amp_lab.course.guard import Contained, Guard
from amp_lab.course.verdict import CheckFailed, Correct, NotAttempted, NotChecked, Raised, Verdict, Wrong

Check = Callable[["Ask"], None]
_CHECKS: dict[str, Check] = {}
_HINTS_SHOWN: dict[str, int] = {}


class NotHere(Exception):
    """Raised in a check: this machine cannot judge the answer; the message says what is missing."""


class Ask:
    """A learner's answer in the hands of a check: call it as you would call the answer itself.

    Tensors, arrays and containers are passed as copies, and an answer that changes them is told so; with
    `may_change=True` they are passed as they are, for contracts such as "add to `.grad`". `ask.call` is the last
    call in words. Whatever the code does instead of returning is raised as `Contained`, which checks let pass.
    """

    def __init__(self, exercise: Exercise, answer: Callable[..., Any], guard: Guard) -> None:
        self._exercise, self._answer, self._guard = exercise, answer, guard
        self.call = f"`{exercise.function}`"

    def __call__(self, *args: Any, may_change: bool = False, **kwargs: Any) -> Any:
        """Call the answer and return what it returns."""
        words = [*map(_argument, args), *(f"{name}={_argument(value)}" for name, value in kwargs.items())]
        self.call = f"`{self._exercise.function}({', '.join(words)})`"
        given: dict[Any, Any] = dict(enumerate(args, start=1)) | kwargs
        own = given if may_change else {name: _own_copy(value) for name, value in given.items()}
        positional = [own[number] for number in range(1, len(args) + 1)]
        got = self._guard.call(self._answer, *positional, **{name: own[name] for name in kwargs})
        for name, value in given.items():
            if own[name] is not value and not _same(value, own[name]):
                which = f"`{name}`" if name in kwargs else name
                raise Mistake(
                    "mutated-input", call=self.call, name=which, want=describe(value), got=describe(own[name])
                )
        return got

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call anything else that runs learner code (a method of their object, `list` on their generator)."""
        return self._guard.call(function, *args, **kwargs)


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
    importlib.import_module(f"amp_lab.course.lessons.l{lesson.number}.checks")
    return _CHECKS[exercise_id]


def judge(exercise: Exercise, check: Check, answer: object, *, limit_s: float = 20.0) -> Verdict:
    """Run one check on one answer; `limit_s` bounds the seconds spent in the learner's code, all calls together."""
    guard = Guard(limit_s)
    if not callable(answer):
        observed = {"got": describe(answer), "kind": kind(answer), "want": f"`{exercise.function}`"}
        return _wrong(
            exercise, Mistake("not-a-function", id=exercise.id, function=exercise.function, **observed), ()
        )
    ask = Ask(exercise, answer, guard)
    try:
        check(ask)
    except Mistake as mistake:
        return _wrong(exercise, mistake, _notes(guard))
    except NotHere as reason:
        return NotChecked(exercise, str(reason), notes=_notes(guard))
    except Contained as contained:
        if isinstance(contained.error, NotImplementedError) and not contained.error.args:
            return NotAttempted(exercise)
        sentence = f"{contained.sentence} It was called as {ask.call}."
        return Raised(exercise, sentence, notes=_notes(guard), fault=contained.fault)
    return Correct(exercise, exercise.why, notes=_notes(guard))


def grade(exercise_id: str, answer: object) -> Verdict:
    """Judge an answer and return the `Verdict`, printing and raising nothing.

    Raises `catalog.UnknownExercise` for an id that no lesson has.
    """
    return judge(catalog.exercise(exercise_id), check_of(exercise_id), answer)


def check(exercise_id: str, answer: object) -> None:
    """Judge an answer and say what came of it.

    Shows why a right answer is right. A wrong one, one that raised an error and a stub raise `CheckFailed`, whose
    message stands in place of a traceback, so that "Run All" stops at the first open exercise and nbval counts a
    failed cell.
    """
    tell(grade(exercise_id, answer))


def tell(verdict: Verdict) -> None:
    """Show a verdict, or raise it as `CheckFailed` if there is something left to do."""
    if isinstance(verdict, (Correct, NotChecked)):
        title, *rest = (part for part in (verdict.headline, verdict.sentence, *verdict.notes) if part)
        _show("\n\n".join([f"**{'✓ ' if verdict.passed else ''}{title}**", *rest]))
    else:
        raise CheckFailed(verdict) from None


def hint(exercise_id: str, number: int | None = None) -> None:
    """Show a hint for an exercise: the next one each time, or the one asked for (1, 2 or 3)."""
    exercise = catalog.exercise(exercise_id)
    last = len(exercise.hints)
    if number is None:
        number = min(_HINTS_SHOWN.get(exercise_id, 0) + 1, last)
    if number not in range(1, last + 1):
        raise ValueError(f"exercise {exercise_id} has hints 1 to {last}; there is no hint {number!r}")
    _HINTS_SHOWN[exercise_id] = number
    more = (
        f'`hint("{exercise_id}")` again shows the next.'
        if number < last
        else f'`solution("{exercise_id}")` shows the answer.'
    )
    _show(f"**Hint {number} of {last} for exercise {exercise_id}.** {exercise.hints[number - 1]}\n\n{more}")


def solution(exercise_id: str) -> None:
    """Show the course's own solution of an exercise, and why it is right."""
    exercise = catalog.exercise(exercise_id)
    path = workspace.checkout() / "solutions" / f"{catalog.lesson_of(exercise_id).slug}.py"
    code = source.solution_of(workspace.read_text(path), path, exercise_id)
    _show(f"**A solution of exercise {exercise_id}.** {exercise.why}\n\n```python\n{code.strip()}\n```")


def _show(markdown: str) -> None:
    """Render Markdown in a notebook, print it anywhere else."""
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import Markdown, display

        display(Markdown(markdown))  # type: ignore[no-untyped-call]
    else:
        print(markdown)


def _wrong(exercise: Exercise, mistake: Mistake, notes: tuple[str, ...]) -> Wrong:
    sentence = exercise.diagnosis(mistake.diagnosis).sentence.format_map(mistake.observed)
    return Wrong(exercise, sentence, notes=notes, diagnosis=mistake.diagnosis, observed=mistake.observed)


def _notes(guard: Guard) -> tuple[str, ...]:
    notes = []
    if guard.output:
        dropped = f"\n(and {guard.output_dropped:,} more characters)" if guard.output_dropped else ""
        notes.append(f"Your code printed:\n{guard.output.rstrip()}{dropped}")
    if guard.leftover_threads:
        names = ", ".join(guard.leftover_threads)
        notes.append(f"Your code left a thread running ({names}): end it with `join()` before you return.")
    if not guard.time_limited:
        notes.append(Guard.NO_LIMIT)
    return tuple(notes)


def _argument(value: Any) -> str:
    return str(value) if isinstance(value, torch.dtype) else describe(value)


def _own_copy(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, (torch.Tensor, np.ndarray, list, dict, set)) else value


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return (
            before.dtype == after.dtype
            and before.shape == after.shape
            and torch.equal(_bits(before), _bits(after))
        )
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after, equal_nan=before.dtype.kind in "fc")
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    return bool(before is after or before == after)


def _bits(value: torch.Tensor) -> torch.Tensor:
    # Compared as bytes, so that a NaN equals itself and -0.0 differs from 0.0.
    return value.detach().to_dense().contiguous().reshape(-1).view(torch.uint8)
