"""The words of the course: what each lesson and exercise is called, needs, hints at and explains.

A lesson `NN` keeps its words in `amp_lab/course/lessons/lNN/text.py` as one `LESSON`. They are plain strings, so
that a command line can show a hint without waiting for PyTorch: nothing here imports anything heavy (a test).
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from amp_lab.course import lessons as _lessons


class Diagnosis(NamedTuple):
    """What a learner is told about one kind of wrong answer, and which of the exercise's hints helps with it.

    `hint` is 1 or 2, never 3, which is nearly the code; None where the sentence says all that there is to say.
    """

    sentence: str
    hint: int | None = None


# What can go wrong in any exercise, whatever it asks. Every sentence shows what was seen ({got}); an exercise's own
# diagnoses come first, these are for what none of its misconceptions explains.
COMMON_DIAGNOSES: Mapping[str, Diagnosis] = {
    "returned-none": Diagnosis(
        "{call} returned `{got}` where {want} is expected. A Python function returns `None` when it ends without "
        "`return`: is the last line missing one?"
    ),
    "wrong-type": Diagnosis("{call} returned {got}, which is {kind}; the exercise asks for {want}. {advice}"),
    "wrong-dtype": Diagnosis(
        "{call} returned a tensor of `{got}` where `{want}` is expected. The dtype is part of the answer: which "
        "operation decided it?"
    ),
    "wrong-shape": Diagnosis(
        "{call} returned a tensor of shape {got} where {want} is expected. Look for a `dim=` or `keepdim=` that is "
        "missing or one too many."
    ),
    "wrong-device": Diagnosis(
        "{call} returned a tensor on `{got}`; its input was on `{want}`, and the answer should stay there."
    ),
    "not-finite": Diagnosis(
        "{call} returned {got}, where every value should be finite; expected {want}. Print the intermediate values: "
        "the first that is inf or nan shows which operation left the range."
    ),
    "mutated-input": Diagnosis(
        "{call} changed its input: argument {name} was {want} before the call and {got} after it. The caller still "
        "needs it: work on a copy, and beware of `+=` and of methods that end in `_`."
    ),
    "wrong-element": Diagnosis(
        "{call} returned a tensor of the right dtype and shape, but {share} values are wrong. The worst{place} is "
        "{got}; the right value is {want}.",
        hint=1,
    ),
    "not-a-function": Diagnosis(
        "`check` was given {got}, which is {kind}. It needs the function itself, not what it returns: write its name "
        'without parentheses, `check("{id}", {function})`.'
    ),
    "not-a-file": Diagnosis(
        "`check` was given {got}, which is {kind}. It needs the name of the file that the cell above writes: "
        '`check("{id}", "{file}")`.'
    ),
    "no-such-file": Diagnosis(
        "`check` was given {got}, and there is no such file in the folder of this page. Run the cell above that begins "
        "with `%%writefile`."
    ),
    "not-refused": Diagnosis(
        "{call} {got}; it should raise a `{want}`, for this argument is outside of what the exercise allows. Test the "
        "argument first, and `raise {want}(...)` with a message that helps."
    ),
    "wrong-value": Diagnosis("{call} returned {got}; the right answer is {want}.", hint=1),
}


class CourseError(Exception):
    """What the course has to say to a learner; a notebook shows the message in place of a traceback."""

    def _render_traceback_(self, *_: object) -> list[str]:
        return [f"AMP Lab: {self}"]


class UnknownExercise(CourseError, LookupError):
    """No exercise, hint or lesson has this name; the message names the nearest ones."""


@dataclass(frozen=True)
class Exercise:
    """One exercise, in words.

    `function` is the name of what the learner writes. `diagnoses` maps an id to a sentence that names the
    misconception; `{got}` in it is replaced by what was observed, and so is every other name in braces that the
    check supplies. `hints` go from the idea, over which call to use, to nearly code. `why` says why the solution is
    right; it is shown after success. `file` is the path of an answer that is a file, written by
    a cell that begins with `%%writefile`; `function` is then what stands in it.
    """

    id: str
    title: str
    minutes: int
    function: str
    hints: tuple[str, str, str]
    diagnoses: Mapping[str, Diagnosis]
    why: str
    file: str = ""

    def __post_init__(self) -> None:
        clash = self.diagnoses.keys() & COMMON_DIAGNOSES.keys()
        if clash:
            raise ValueError(
                f"exercise {self.id}: {sorted(clash)} are diagnoses of every exercise; choose other ids"
            )
        for name, diagnosis in self.diagnoses.items():
            if "got" not in {field for _, field, _, _ in string.Formatter().parse(diagnosis.sentence)}:
                raise ValueError(
                    f"exercise {self.id}: diagnosis {name!r} shows no observed value; put {{got}} into it"
                )
            if diagnosis.hint not in (1, 2, None):
                raise ValueError(
                    f"exercise {self.id}: diagnosis {name!r} points to hint {diagnosis.hint!r}; choose 1, 2 or None"
                )

    def diagnosis(self, name: str) -> Diagnosis:
        """Return the exercise's own diagnosis called `name`, or the one that every exercise has."""
        return self.diagnoses.get(name) or COMMON_DIAGNOSES[name]


@dataclass(frozen=True)
class Lesson:
    """One lesson, in words. `slug` is the name of its files: `solutions/<slug>.py`, `notebooks/<slug>.ipynb`."""

    slug: str
    title: str
    minutes: int
    difficulty: str
    needs: str
    exercises: tuple[Exercise, ...]

    @property
    def number(self) -> str:
        """The two digits that the slug starts with, such as `"04"`."""
        return self.slug[:2]


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return every lesson of the course, in order."""
    names = sorted(module.name for module in pkgutil.iter_modules(_lessons.__path__))
    return tuple(importlib.import_module(f"{_lessons.__name__}.{name}.text").LESSON for name in names)


def exercises() -> tuple[Exercise, ...]:
    """Return every exercise of the course, in order."""
    return tuple(exercise for lesson in lessons() for exercise in lesson.exercises)


def exercise(exercise_id: str) -> Exercise:
    """Return the exercise called `exercise_id`, such as `"4.1"`; raise `UnknownExercise` that suggests the nearest."""
    found = {each.id: each for each in exercises()}
    if not isinstance(exercise_id, str):
        raise UnknownExercise(
            f'the id of an exercise comes first and in quotes, as in check("{next(iter(found))}", ...)'
        )
    if exercise_id in found:
        return found[exercise_id]
    named = _lesson_called(exercise_id)
    if named and named.exercises:
        own = ", ".join(each.id for each in named.exercises)
        are = "its exercises are" if len(named.exercises) > 1 else "its exercise is"
        raise UnknownExercise(f"{exercise_id} is a lesson; {are} {own}")
    raise UnknownExercise(_no_such("exercise", exercise_id, found))


def lesson(name: str) -> Lesson:
    """Return a lesson by number (`"04"`, `"4"`) or slug; raise `UnknownExercise` that suggests the nearest."""
    named = _lesson_called(name)
    if named:
        return named
    for each in lessons():
        if name in {exercise.id for exercise in each.exercises}:
            raise UnknownExercise(f"{name} is an exercise; its lesson is {each.slug}")
    raise UnknownExercise(_no_such("lesson", name, [each.slug for each in lessons()]))


def lesson_of(exercise_id: str) -> Lesson:
    """Return the lesson that an exercise belongs to."""
    wanted = exercise(exercise_id)
    return next(each for each in lessons() if wanted in each.exercises)


def _lesson_called(name: str) -> Lesson | None:
    """Return the lesson of this number or slug, if there is one."""
    for each in lessons():
        if name == each.slug or (name.isdecimal() and name.zfill(2) == each.number):
            return each
    return None


def _no_such(kind: str, name: object, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    if near:
        return f"there is no {kind} {name!r}; did you mean {' or '.join(near)}?"
    return f"there is no {kind} {name!r}; there are {', '.join(known)}"
