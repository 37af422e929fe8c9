"""The course's side of the package: exercises, their checks, quizzes, the learner's workspace.

From the ground up: `catalog` reads the words of `lessons/`; `pages`, `learner`, `judging`; then `machine` and
`quizzes`; and `checking`, which uses most of them. Each says in its `__init__.py` what it is for, and imports only
from those before it.

A lesson starts with `from amp_lab.course import check, hint, quiz, solution`. The names are fetched when they are
asked for, because command-line tools use this package too and must not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_lab.course.judging.exercise import check, grade, hint, solution
    from amp_lab.course.quizzes.answering import quiz

__all__ = ["check", "grade", "hint", "quiz", "solution"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "quizzes.answering" if name == "quiz" else "judging.exercise"
        return getattr(importlib.import_module(f"amp_lab.course.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
