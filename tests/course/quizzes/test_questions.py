"""Quizzes as data: that each can be answered, and gives nothing away."""

import re

import pytest

from amp_lab.course import catalog
from amp_lab.course.quizzes.questions import Option, Question, questions

QUIZZES = {lesson.number: questions(lesson) for lesson in catalog.lessons()}
EVERY = [question for asked in QUIZZES.values() for question in asked]
SMALL = Question("How wide?", (Option("Wide.", "Why `a < b`."), Option("`a & b`", "Since.", right=True)))


def test_every_lesson_has_a_quiz():
    assert QUIZZES
    assert {number: len(asked) for number, asked in QUIZZES.items() if not 4 <= len(asked) <= 6} == {}


@pytest.mark.parametrize("number", QUIZZES)
def test_the_right_answer_is_not_given_away(number):
    asked = QUIZZES[number]
    assert len({question.right for question in asked}) > 2, "the same letter over and over"
    longest = [question.text for question in asked if right_is_longest(question)]
    assert len(longest) <= len(asked) / 2, longest


def right_is_longest(question):
    longest = max(len(option.text) for option in question.options)
    return all(option.right for option in question.options if len(option.text) == longest)


@pytest.mark.parametrize("question", EVERY, ids=lambda each: each.text[:30])
def test_options_are_of_similar_length(question):
    lengths = [len(option.text) for option in question.options]
    assert max(lengths) <= 1.6 * min(lengths) + 8


def test_no_two_questions_and_no_two_explanations_are_the_same():
    explanations = [option.explanation for question in EVERY for option in question.options]
    assert len(set(explanations)) == len(explanations)
    assert len({question.text for question in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([("a", "b", True)], "has 1 options; give it 2 to 5"),
        ([(str(each), "b", each == 0) for each in range(6)], "has 6 options"),
        ([("a", "b", False), ("c", "d", False)], "has 0 right options"),
        ([("a", "b", True), ("c", "d", True)], "has 2 right options"),
        ([("a", "b", True), ("a", "d", False)], "the same option twice"),
        ([("a", " ", True), ("c", "d", False)], "is empty"),
        ([("", "b", True), ("c", "d", False)], "is empty"),
        ([("a", "2**3", True), ("c", "d", False)], "has '*' outside of code"),
        ([("a", "odd ` tick", True), ("c", "d", False)], "has '`' outside of code"),
        ([("a < b", "b", True), ("c", "d", False)], "has '<' outside of code"),
    ],
)
def test_a_question_that_cannot_be_asked(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Question("Why?", tuple(Option(*each) for each in options))


def test_an_empty_question():
    with pytest.raises(ValueError, match="is empty"):
        Question("", SMALL.options)
