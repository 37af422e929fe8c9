"""`quiz("01")`: the questions of a lesson, to click on in a notebook and to answer by a call anywhere."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from amp_lab.course import catalog
from amp_lab.course.catalog import CourseError, Lesson
from amp_lab.course.judging.show import in_a_notebook, show
from amp_lab.course.quizzes.questions import Option, Question, questions

_WIDTH = 96


def quiz(lesson: str, number: int | None = None, letter: str | None = None) -> None:
    """Show the quiz of a lesson, or answer one of its questions.

    `quiz("01")` shows all questions, `quiz("01", 2)` the second one, and `quiz("01", 2, "b")` says whether its
    option b is right, and why. Nothing is kept: try as often as you like.

    Raises `CourseError`, which says what there is, for a lesson, a question or a letter that there is not.
    """
    found = _lesson(lesson)
    asked = questions(found)
    if number is None and letter is None:
        _show_all(found, asked)
        return
    question = _question(found, asked, number)
    place = asked.index(question) + 1
    if letter is None:
        show(*_as_text(place, question))
    else:
        show(*_verdict(found, place, _option(found, place, question, letter)))


def _lesson(name: object) -> Lesson:
    if not isinstance(name, str):
        raise CourseError('the number of the lesson comes first and in quotes, as in quiz("00")')
    return catalog.lesson(name)


def _question(lesson: Lesson, asked: tuple[Question, ...], number: object) -> Question:
    if type(number) is not int or not 1 <= number <= len(asked):
        raise CourseError(
            f"the quiz of lesson {lesson.number} has questions 1 to {len(asked)}; there is no question {number!r}. "
            f'Option a of the first is quiz("{lesson.number}", 1, "a")'
        )
    return asked[number - 1]


def _option(lesson: Lesson, place: int, question: Question, letter: object) -> tuple[str, Option]:
    picked = letter.strip().lower() if isinstance(letter, str) else letter
    for each in question.lettered:
        if each[0] == picked:
            return each
    raise CourseError(
        f"question {place} of lesson {lesson.number} has options {', '.join(question.letters)}; there is no "
        f'{letter!r}. Option a is quiz("{lesson.number}", {place}, "a")'
    )


# Each of the following returns the same words twice: as Markdown, and for a terminal.


def _as_text(place: int, question: Question) -> tuple[str, str]:
    """Lay a question out with its options."""
    lines = [_wrapped(f"{place}. ", question.text)]
    lines += [_wrapped(f"   {letter}  ", option.text) for letter, option in question.lettered]
    options = "\n".join(f"- **{letter}** · {option.text}" for letter, option in question.lettered)
    return f"**{place}.** {question.text}\n\n{options}", "\n".join(lines)


def _all_as_text(lesson: Lesson, asked: tuple[Question, ...]) -> tuple[str, str]:
    """Lay a whole quiz out, and say how it is answered without a mouse."""
    title = f"Quiz of lesson {lesson.number} · {lesson.title}"
    how = f'`quiz("{lesson.number}", 1, "a")` answers question 1 with option a.'
    markdown, plain = zip(*(_as_text(place, each) for place, each in enumerate(asked, 1)), strict=True)
    return "\n\n".join([f"**{title}**", *markdown, how]), "\n\n".join([title, *plain, _wrapped("", how)])


def _verdict(lesson: Lesson, place: int, picked: tuple[str, Option]) -> tuple[str, str]:
    """Say whether an option is right, and why."""
    letter, option = picked
    headline = f"{'✓' if option.right else '✗'} Question {place}, {letter}: {'right' if option.right else 'not right'}"
    again = "" if option.right else f' Try another: `quiz("{lesson.number}", {place}, ...)`.'
    words = f"{option.explanation}{again}"
    return f"**{headline}.** {words}", f"{headline}\n{_wrapped('', words)}"


def _wrapped(label: str, text: str) -> str:
    """Break a text to lines that are indented as its label is wide; code is not torn apart."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _show_all(lesson: Lesson, asked: tuple[Question, ...]) -> None:
    """Show the widget where there can be one, and the words for every other reader."""
    show(*_all_as_text(lesson, asked), _widget(asked) if in_a_notebook() else {})


def _widget(asked: tuple[Question, ...]) -> Mapping[str, Any]:
    """Return the form of a quiz that can be clicked on, none without ipywidgets."""
    try:
        from amp_lab.course.quizzes.panel import QuizPanel
    except ImportError:
        return {}
    forms: dict[str, Any] = QuizPanel(asked).box._repr_mimebundle_()
    return forms
