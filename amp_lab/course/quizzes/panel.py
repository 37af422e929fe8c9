"""The quiz as a widget: pick an option, read why it is right or wrong, try again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import ipywidgets as w

from amp_lab.course.quizzes.questions import CODE, Question

_STYLE = "line-height: 1.45; margin: {above}px 0 2px 0; white-space: normal;"


class QuizPanel:
    """All questions of a quiz, and a line that counts how many are answered right."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self.questions = [QuestionPanel(place, each, self._count) for place, each in enumerate(asked, 1)]
        self.score = w.HTML()
        children = [*(panel.box for panel in self.questions), self.score]
        self.box = w.VBox(children, layout=w.Layout(max_width="760px"))
        self._count()

    def _count(self) -> None:
        right = sum(panel.right for panel in self.questions)
        self.score.value = _html(f"{right} of {len(self.questions)} answered right.", bold=True, above=14)


class QuestionPanel:
    """One question. Each option has a button, with a sign once it was picked: colour alone would not do.

    What was picked stays marked, and a question that was answered right stays right.
    """

    def __init__(self, place: int, question: Question, changed: Callable[[], None]) -> None:
        self.right = False
        self._question, self._changed = question, changed
        self.buttons = [_button(letter) for letter in question.letters]
        for picked, button in enumerate(self.buttons):
            button.on_click(partial(self._pick, picked))
        self.explanation = w.HTML()
        rows = [
            w.HBox([button, w.HTML(_html(option.text))])
            for button, option in zip(self.buttons, question.options, strict=True)
        ]
        text = w.HTML(_html(f"{place}. {question.text}", bold=True, above=14))
        self.box = w.VBox([text, *rows, self.explanation])

    def _pick(self, picked: int, _: object) -> None:
        letter, option = self._question.lettered[picked]
        button = self.buttons[picked]
        sign, style = ("✓", "success") if option.right else ("✗", "danger")
        button.description, button.button_style = f"{letter} {sign}", style
        verdict = "Right." if option.right else "Not right."
        self.explanation.value = _html(f"{letter} {sign} {verdict} {option.explanation}")
        self.right = self.right or option.right  # the wrong ones may be read afterwards, too
        self._changed()


def _button(letter: str) -> w.Button:
    return w.Button(
        description=letter, tooltip=f"answer {letter}", layout=w.Layout(width="52px", flex="none")
    )


def _html(text: str, *, bold: bool = False, above: int = 4) -> str:
    """Return a paragraph of HTML: code between backticks in a code's dress, everything else as it is."""
    words = CODE.sub(r"<code>\1</code>", escape(text))
    style = _STYLE.format(above=above) + (" font-weight: bold;" if bold else "")
    return f'<div style="{style}">{words}</div>'
