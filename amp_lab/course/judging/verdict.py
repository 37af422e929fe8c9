"""What came of a check: five outcomes, and how each of them is told to a learner."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from amp_lab.course.catalog import CourseError, Exercise

_WIDTH = 96
_CODE = re.compile(r"`([^`]+)`")
_TIED = "\N{NO-BREAK SPACE}"
# Bold and no colour: the box that JupyterLab puts around an error is red itself, dark red in the dark theme.
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class Note(NamedTuple):
    """Something worth knowing beside the verdict; `printed` is output of the learner's code, shown as it is."""

    sentence: str
    printed: str = ""


@dataclass(frozen=True)
class Verdict:
    """The outcome of grading one answer.

    `sentence` says what was seen, in words for the learner, with code between backticks.
    """

    exercise: Exercise
    sentence: str = ""
    notes: tuple[Note, ...] = field(default=(), kw_only=True)

    passed: ClassVar[bool] = False
    outcome: ClassVar[str]

    @property
    def headline(self) -> str:
        """One line: which exercise, and the outcome."""
        return f"Exercise {self.exercise.id} · {self.exercise.title}: {self.outcome}"

    @property
    def advice(self) -> str:
        """What to do next, in one line; empty when there is nothing to do."""
        return ""

    @property
    def text(self) -> str:
        """The whole message as plain text."""
        parts = (self.headline, self.sentence, *(part for note in self.notes for part in note), self.advice)
        return "\n".join(part for part in parts if part)

    @property
    def markdown(self) -> str:
        """The message for a notebook's page; what the code printed is fenced, as it may look like Markdown."""
        parts = [f"**{'✓ ' if self.passed else ''}{self.headline}**", self.sentence]
        for note in self.notes:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", note.printed)), default=0))
            parts += [note.sentence, f"{fence}text\n{note.printed}\n{fence}" if note.printed else ""]
        return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Correct(Verdict):
    """The answer keeps the contract in every case that was tried."""

    passed: ClassVar[bool] = True
    outcome: ClassVar[str] = "correct"


@dataclass(frozen=True)
class Wrong(Verdict):
    """The answer ran and broke the contract: `diagnosis` is the id of the idea behind it, `observed` what was seen."""

    diagnosis: str = field(kw_only=True)
    observed: Mapping[str, object] = field(kw_only=True)

    outcome: ClassVar[str] = "not right yet"

    @property
    def advice(self) -> str:
        """Name the hint that helps with this very mistake, if one does."""
        hint = self.exercise.diagnosis(self.diagnosis).hint
        return "" if hint is None else f'For a hint, run `hint("{self.exercise.id}", {hint})`.'


@dataclass(frozen=True)
class Raised(Verdict):
    """The learner's code raised an error instead of returning: `fault` says how (see `guard.Contained`)."""

    fault: str = field(kw_only=True)

    outcome: ClassVar[str] = "your code raised an error"

    @property
    def advice(self) -> str:
        """An error is no riddle: point at the code first, at the hint second."""
        return (
            "Correct your function, run its cell again, then this one. "
            f'For a hint, run `hint("{self.exercise.id}")`.'
        )


@dataclass(frozen=True)
class Stopped(Raised):
    """The guard ended the learner's code, or the learner did."""

    outcome: ClassVar[str] = "your code was stopped"

    @property
    def advice(self) -> str:
        """Nothing needs correction after the stop button."""
        return "" if self.fault == "interrupted" else super().advice


@dataclass(frozen=True)
class NotAttempted(Verdict):
    """The stub is as it was."""

    outcome: ClassVar[str] = "not attempted yet"

    @property
    def advice(self) -> str:
        """Say what to do with the stub."""
        return (
            f"Replace `raise NotImplementedError` in `{self.exercise.function}`, run that cell, then this one. "
            f'For a hint, run `hint("{self.exercise.id}")`.'
        )


@dataclass(frozen=True)
class NotChecked(Verdict):
    """This machine cannot judge the answer; it does not count as done."""

    outcome: ClassVar[str] = "NOT CHECKED on this machine"


class CheckFailed(CourseError):
    """Raised by `check` when an answer is wrong, raised an error or is still the stub; nbval sees a failed cell."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict

    def _render_traceback_(self, *_: object) -> list[str]:
        """Give IPython the lines to show: a bold headline, then the message wrapped to a readable width."""
        verdict = self.verdict
        lines = [f"{_BOLD}{verdict.headline}{_PLAIN}", *_wrapped(verdict.sentence)]
        for note in verdict.notes:
            lines += [*_wrapped(note.sentence), *note.printed.splitlines()]
        return [*lines, *_wrapped(verdict.advice)]


def _wrapped(text: str) -> list[str]:
    """Break a paragraph into lines, and set the code in it in bold without tearing it apart."""
    whole = _CODE.sub(lambda code: code.group().replace(" ", _TIED), text)
    lines = textwrap.wrap(whole, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_CODE.sub(rf"{_BOLD}\1{_PLAIN}", line).replace(_TIED, " ") for line in lines]
