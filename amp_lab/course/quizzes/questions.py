"""The quizzes of the course as data: `lessons/lNN/quiz.py` holds QUIZ, 4 to 6 questions on what lesson NN teaches.

Texts are plain sentences with code between backticks. They are shown as HTML, as Markdown and in a terminal, and
nothing here imports what is slow.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from typing import Final

from amp_lab.course import catalog, lessons
from amp_lab.course.catalog import CourseError, Lesson

LETTERS: Final = "abcde"
CODE: Final = re.compile(r"`([^`]+)`")
# What Markdown would take for its own: outside code it would look different there and in a terminal.
_MARKUP: Final = re.compile(r"[`*_<>\[\]]")


@dataclass(frozen=True)
class Option:
    """One answer that can be picked, and what is said to those who do: why it is right, or which idea misleads."""

    text: str
    explanation: str
    right: bool = False

    def __post_init__(self) -> None:
        _check_texts(self.text, self.explanation)


@dataclass(frozen=True)
class Question:
    """A question with 2 to 5 options, of which one is right; they are lettered from a in this order."""

    text: str
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        _check_texts(self.text)
        if not 2 <= len(self.options) <= len(LETTERS):
            raise ValueError(f"{self.text!r} has {len(self.options)} options; give it 2 to {len(LETTERS)}")
        right = sum(option.right for option in self.options)
        if right != 1:
            raise ValueError(f"{self.text!r} has {right} right options; mark exactly one with right=True")
        if len({option.text for option in self.options}) < len(self.options):
            raise ValueError(f"{self.text!r} has the same option twice")

    @property
    def letters(self) -> str:
        """The letters of the options: "abc" for three."""
        return LETTERS[: len(self.options)]

    @property
    def right(self) -> str:
        """The letter of the right option."""
        return next(letter for letter, option in self.lettered if option.right)

    @property
    def lettered(self) -> tuple[tuple[str, Option], ...]:
        """Each option with its letter."""
        return tuple(zip(LETTERS, self.options, strict=False))


def _check_texts(*texts: str) -> None:
    for text in texts:
        if not text.strip():
            raise ValueError("a question, an option or an explanation is empty")
        if found := _MARKUP.search(CODE.sub("", text)):
            raise ValueError(f"{text!r} has {found[0]!r} outside of code: put code between backticks")


def questions(lesson: Lesson) -> tuple[Question, ...]:
    """Return the quiz of a lesson; raise `CourseError` that names those with a quiz if it has none."""
    if not _has_quiz(lesson):
        others = [each.number for each in catalog.lessons() if _has_quiz(each)]
        raise CourseError(f"lesson {lesson.number} has no quiz; there is one for {', '.join(others)}")
    quiz: tuple[Question, ...] = importlib.import_module(_module(lesson)).QUIZ
    return quiz


def _has_quiz(lesson: Lesson) -> bool:
    try:
        return importlib.util.find_spec(_module(lesson)) is not None
    except ModuleNotFoundError:  # no such lesson's package
        return False


def _module(lesson: Lesson) -> str:
    return f"{lessons.__name__}.l{lesson.number}.quiz"
