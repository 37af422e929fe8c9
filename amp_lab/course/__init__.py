"""The course's side of the package: exercises, their checks, quizzes, the learner's workspace.

A lesson starts with `from amp_lab.course import check, hint, quiz, solution`. The names are fetched when they are
asked for, because command-line tools use this package too and must not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_lab.course.exercise import check, grade, hint, solution
    from amp_lab.course.quizzes import quiz

__all__ = ["check", "grade", "hint", "quiz", "solution"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "quizzes" if name == "quiz" else "exercise"
        return getattr(importlib.import_module(f"amp_lab.course.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
