"""The quiz as a widget, clicked through its real buttons."""

import html
import re

import pytest

from amp_lab.course import catalog
from amp_lab.course.quizzes.panel import QuizPanel
from amp_lab.course.quizzes.questions import Option, Question, questions

EVERY = [question for lesson in catalog.lessons() for question in questions(lesson)]
SMALL = Question("How wide?", (Option("Wide.", "Why `a < b`."), Option("`a & b`", "Since.", right=True)))


def words(box):
    """Return what a widget says, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", box.value))


def test_a_wrong_answer_then_the_right_one():
    other = Question("Next?", (Option("Yes.", "Yes.", right=True), Option("No.", "No.")))
    panel = QuizPanel((SMALL, other))
    first, second = panel.questions
    assert words(panel.score) == "0 of 2 answered right."
    assert words(first.explanation) == ""

    first.buttons[0].click()
    assert words(first.explanation) == "a ✗ Not right. Why a < b."
    assert "<code>a &lt; b</code>" in first.explanation.value
    assert [button.description for button in first.buttons] == ["a ✗", "b"]
    assert [button.button_style for button in first.buttons] == ["danger", ""]
    assert words(panel.score) == "0 of 2 answered right."

    first.buttons[1].click()
    assert words(first.explanation) == "b ✓ Right. Since."
    assert [button.description for button in first.buttons] == ["a ✗", "b ✓"]
    assert [button.button_style for button in first.buttons] == ["danger", "success"]
    assert words(panel.score) == "1 of 2 answered right."

    second.buttons[0].click()
    assert words(panel.score) == "2 of 2 answered right."
    second.buttons[1].click()
    assert words(second.explanation) == "b ✗ Not right. No."
    assert words(panel.score) == "2 of 2 answered right.", "reading on costs what was right"
    assert words(first.explanation) == "b ✓ Right. Since.", "one question touches another"


def test_questions_and_options_are_on_it_as_they_are_written():
    panel = QuizPanel(EVERY)
    for question, shown in zip(EVERY, panel.questions, strict=True):
        text, *rows, _ = shown.box.children
        assert words(text).endswith(question.text.replace("`", ""))
        assert [words(row.children[1]) for row in rows] == [
            option.text.replace("`", "") for option in question.options
        ]
        assert [row.children[0] for row in rows] == shown.buttons


@pytest.mark.parametrize("place", range(len(EVERY)))
def test_every_button_gives_its_own_explanation(place):
    (shown,) = QuizPanel([EVERY[place]]).questions
    was_right = False
    for button, (letter, option) in zip(shown.buttons, EVERY[place].lettered, strict=True):
        button.click()
        verdict = f"{letter} ✓ Right." if option.right else f"{letter} ✗ Not right."
        assert words(shown.explanation) == f"{verdict} {option.explanation}".replace("`", "")
        was_right |= option.right
        assert shown.right == was_right
