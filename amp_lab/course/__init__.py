"""The course's side of the package: exercises, their checks, the learner's workspace.

A lesson starts with `from amp_lab.course import check, hint, solution`. The names are fetched when they are asked for,
because command-line tools use this package too and must not wait for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_lab.course.exercise import check, grade, hint, solution

__all__ = ["check", "grade", "hint", "solution"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from amp_lab.course import exercise

        return getattr(exercise, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
