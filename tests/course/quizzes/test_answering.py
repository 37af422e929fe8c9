"""`quiz(...)` as a page calls it: what a terminal prints, and what a notebook is given to display."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import amp_lab.course
from amp_lab.course import catalog, quiz
from amp_lab.course.catalog import CourseError
from amp_lab.course.quizzes.questions import Option, Question, questions

REPOSITORY = Path(__file__).parents[3]
QUIZZES = {lesson.number: questions(lesson) for lesson in catalog.lessons()}
SMALL = Question("How wide?", (Option("Wide.", "Why `a < b`."), Option("`a & b`", "Since.", right=True)))


# --- in a terminal ------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Lesson 00 with a quiz of one question, whose right answer is b."""
    module = importlib.import_module("amp_lab.course.lessons.l00.quiz")
    monkeypatch.setattr(module, "QUIZ", (SMALL,))


def test_the_questions_and_how_to_answer_them(small, capsys):
    assert quiz("00") is None
    assert capsys.readouterr().out == (
        "Quiz of lesson 00 · Start here\n\n1. How wide?\n   a  Wide.\n   b  `a & b`\n\n"
        '`quiz("00", 1, "a")` answers question 1 with option a.\n'
    )


@pytest.mark.parametrize("name", ["00", "0", "00_start_here"])
def test_one_question(small, capsys, name):
    quiz(name, 1)
    assert capsys.readouterr().out == "1. How wide?\n   a  Wide.\n   b  `a & b`\n"


def test_a_wrong_and_a_right_answer(small, capsys):
    quiz("00", 1, "a")
    wrong = 'Question 1, a: not right\nWhy `a < b`. Try another: `quiz("00", 1, ...)`.\n'
    assert capsys.readouterr().out == f"✗ {wrong}"
    quiz("00", 1, " B ")
    assert capsys.readouterr().out == "✓ Question 1, b: right\nSince.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), 'comes first and in quotes, as in quiz("00")'),
        (("99",), "there is no lesson '99'; there are 00_start_here"),
        (("00_start",), "did you mean 00_start_here?"),
        (("00", 2), "has questions 1 to 1; there is no question 2"),
        (("00", 0), "there is no question 0"),
        (("00", "1"), "there is no question '1'"),
        (("00", True), "there is no question True"),
        (("00", None, "a"), "there is no question None"),
        (("00", "b"), "there is no question 'b'"),
        (("00", 1, "c"), 'has options a, b; there is no \'c\'. Option a is quiz("00", 1, "a")'),
        (("00", 1, ""), "there is no ''"),
        (("00", 1, "ab"), "there is no 'ab'"),
        (("00", 1, 1), "there is no 1"),
    ],
)
def test_what_there_is_not(small, arguments, message):
    with pytest.raises(CourseError, match=re.escape(message)):
        quiz(*arguments)


def test_a_lesson_without_a_quiz(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.endswith("l00.quiz") else find_spec(name)
    )
    with pytest.raises(CourseError, match=r"^lesson 00 has no quiz; "):
        quiz("00")


def test_lines_are_not_too_long_for_a_terminal(capsys):
    for number, asked in QUIZZES.items():
        quiz(number)
        for place, question in enumerate(asked, 1):
            for letter in question.letters:
                quiz(number, place, letter)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 50
    assert max(map(len, lines)) <= 96


def test_the_name_is_the_function_whatever_was_imported():
    """A submodule called quiz would take its place."""
    for module in pkgutil.iter_modules(amp_lab.course.__path__):
        importlib.import_module(f"amp_lab.course.{module.name}")
    assert amp_lab.course.quiz is quiz
    assert callable(quiz)


def test_a_terminal_waits_for_nothing():
    script = (
        "import sys; from amp_lab.course import quiz; quiz('00', 1, 'a'); quiz('00')\n"
        "print({'torch', 'IPython', 'ipywidgets', 'numpy', 'nbformat'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


# --- in a notebook ------------------------------------------------------------------------------------------


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook is given to display."""
    import IPython
    from IPython import display

    shown = []
    monkeypatch.setattr(IPython, "get_ipython", object)
    monkeypatch.setattr(display, "display", lambda bundle, *, raw: shown.append(bundle))
    return shown


def test_a_notebook_gets_the_widget_and_the_words(small, notebook, capsys):
    quiz("00")
    quiz("00", 1, "b")
    whole, verdict = notebook
    assert set(whole) == {"application/vnd.jupyter.widget-view+json", "text/plain", "text/markdown"}
    assert "**1.** How wide?\n\n- **a** · Wide.\n- **b** · `a & b`" in whole["text/markdown"]
    assert verdict == {
        "text/plain": "✓ Question 1, b: right\nSince.",
        "text/markdown": "**✓ Question 1, b: right.** Since.",
    }
    assert capsys.readouterr().out == ""


def test_a_notebook_without_ipywidgets_gets_the_words(small, notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "amp_lab.course.quizzes.panel", None)
    quiz("00")
    assert set(notebook[0]) == {"text/plain", "text/markdown"}
