"""Quizzes: that each can be answered, teaches and gives nothing away; in a terminal, and through its real widgets."""

import html
import importlib
import pkgutil
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import amp_lab.course
from amp_lab.course import catalog, quiz
from amp_lab.course.catalog import CourseError
from amp_lab.course.questions import Option, Question, questions
from amp_lab.course.quiz_panel import QuizPanel
from amp_lab.train.data import digits

REPOSITORY = Path(__file__).parents[2]
QUIZZES = {lesson.number: questions(lesson) for lesson in catalog.lessons()}
EVERY = [question for asked in QUIZZES.values() for question in asked]
SMALL = Question("How wide?", (Option("Wide.", "Why `a < b`."), Option("`a & b`", "Since.", right=True)))


# --- What a quiz is made of ---


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


# --- In a terminal ---


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


# --- As a widget ---


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
    assert words(first.explanation) == "✗ Not right. Why a < b."
    assert "<code>a &lt; b</code>" in first.explanation.value
    assert [button.description for button in first.buttons] == ["a ✗", "b"]
    assert [button.button_style for button in first.buttons] == ["danger", ""]
    assert words(panel.score) == "0 of 2 answered right."

    first.buttons[1].click()
    assert words(first.explanation) == "✓ Right. Since."
    assert [button.description for button in first.buttons] == ["a", "b ✓"]
    assert [button.button_style for button in first.buttons] == ["", "success"]
    assert words(panel.score) == "1 of 2 answered right."

    second.buttons[0].click()
    assert words(panel.score) == "2 of 2 answered right."
    second.buttons[1].click()
    assert words(panel.score) == "1 of 2 answered right."
    assert words(first.explanation) == "✓ Right. Since.", "one question touches another"


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
    for button, option in zip(shown.buttons, EVERY[place].options, strict=True):
        button.click()
        verdict = "✓ Right." if option.right else "✗ Not right."
        assert words(shown.explanation) == f"{verdict} {option.explanation}".replace("`", "")
        assert shown.right == option.right


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
    monkeypatch.setitem(sys.modules, "amp_lab.course.quiz_panel", None)
    quiz("00")
    assert set(notebook[0]) == {"text/plain", "text/markdown"}


# --- What lesson 00's quiz claims ---


@pytest.fixture(scope="module")
def last_losses():
    """Run lesson 00's small network in one dtype each, as the quiz imagines it."""
    images, labels = digits(128)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(dtype, scale=1.0, steps=1500):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(images.to(dtype)), labels)
            optimizer.zero_grad()
            (loss.float() * scale).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
        return loss.item()

    yield {
        "FP32": run(torch.float32),
        "FP16": run(torch.float16),
        "FP16, scaled": run(torch.float16, 1024.0),
        "BF16": run(torch.bfloat16, steps=700),
    }
    torch.set_num_threads(threads)


def test_scaling_alone_rescues_nothing(last_losses):
    assert last_losses["FP16"] > 1.4 * last_losses["FP32"]
    assert last_losses["FP16, scaled"] == pytest.approx(last_losses["FP16"], rel=0.02)


def test_bf16_gets_stuck_earlier(last_losses):
    """Its loss after 700 steps is what it will be left with; FP16 is far below that later."""
    assert last_losses["BF16"] > 3 * last_losses["FP16"]
    assert torch.finfo(torch.bfloat16).eps == 8 * torch.finfo(torch.float16).eps


def test_a_region_for_the_gpu_leaves_cpu_tensors_in_fp32():
    x = torch.ones(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without CUDA PyTorch warns, and lesson 00 says so
        with torch.autocast("cuda", torch.float16):
            assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.float16):
        assert (x @ x).dtype == torch.float16
