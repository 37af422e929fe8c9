"""`amp-lab check`: run the learner's copies from top to bottom, and say which exercises are right."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from amp_lab.cli.asking import lesson_called
from amp_lab.cli.update import tell_of_new_text
from amp_lab.course.catalog import Lesson
from amp_lab.course.learner import workspace

if TYPE_CHECKING:
    from amp_lab.cli.screen import Screen
    from amp_lab.course.checking.lessons import Step
    from amp_lab.course.checking.report import Report, Result

_MARKS = {"right": "✓", "wrong": "✗", "open": "○", "not checked": "–", "not run": "!"}
_PLAIN_MARKS = {"right": "+", "wrong": "x", "open": "o", "not checked": "-", "not run": "!"}
_COLOURS = {"right": "green", "wrong": "red", "open": "yellow", "not checked": "yellow", "not run": "red"}


class Seconds(click.FloatRange):
    """A time that can be waited for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return it as a number of seconds, from one to a day; `nan` is neither too small nor too large."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


@click.command()
@click.argument("lessons", metavar="[LESSON]...", nargs=-1)
@click.option(
    "--timeout",
    type=Seconds(1, 86_400),
    default=120.0,
    metavar="SECONDS",
    help="How long a cell may run; 120 if you do not say.",
)
def check(lessons: tuple[str, ...], timeout: float) -> None:
    """Check your exercises.

    Runs what you saved of each LESSON with nbval, from top to bottom, and says what came of every exercise; without
    a LESSON, those that you have started. Your copy itself is not changed. Other cells that fail are mentioned, but
    only exercises count.

    \b
    Exit status:
      0  every exercise is right
      1  an exercise is wrong, open or could not be run,
         or no lesson was started yet
      2  there is no such lesson, or no copy of it
      3  all is right but what this machine cannot check
    130  stopped with Ctrl+C
    """
    with _ending_in_order():
        sys.exit(_check(lessons, timeout))


def _check(lessons: Sequence[str], timeout: float) -> int:
    """Do it, and return the exit status."""
    from amp_lab.cli.screen import screen
    from amp_lab.course.learner import updating

    root = workspace.checkout()
    named = {lesson.slug: lesson for lesson in map(lesson_called, lessons)}
    workspace.look(root)
    asked = tuple(named.values()) or updating.started(root)
    if not asked:
        click.echo(f"No lesson was started yet in {root / 'work'}: `amp-lab lab` opens the first one.")
        return 1
    _need_copies(root, asked)
    if importlib.util.find_spec("nbval") is None:
        raise click.ClickException(f"{sys.executable} has no nbval: run `make lab` in {root}")
    with screen() as out:
        reports = list(_told(root, asked, timeout, out))
    tell_of_new_text(root, asked)
    for line in _how_to_go_on(reports):
        click.echo(line)
    return _status(reports)


def _need_copies(root: Path, asked: Sequence[Lesson]) -> None:
    for lesson in asked:
        if not os.path.lexists(root / "work" / f"{lesson.slug}.ipynb"):
            raise click.UsageError(
                f"there is no copy of lesson {lesson.number} in {root / 'work'}: "
                f"`amp-lab lab {lesson.number}` makes one and opens it"
            )


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let a signal that ends programs end this one as Ctrl+C does: what it started and wrote is cleaned up."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    # What is ignored, as by nohup, stays so.
    ends = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for number in ends:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)


def _told(root: Path, asked: Sequence[Lesson], timeout: float, out: Screen) -> Iterator[Report]:
    """Check lessons, and tell of each when it is through; what is right is remembered for `amp-lab progress`."""
    from amp_lab.course.learner import progress

    solved = progress.done(root)
    names = ", ".join(f"{lesson.number} {lesson.title}" for lesson in asked)
    out.say(f"Checking {names}. The first result takes some seconds.")
    began = time.monotonic()
    with closing(_reports(root, asked, timeout, out)) as reports:
        for report in reports:
            _tell(report, time.monotonic() - began, out, solved)
            _remember(root, report)
            yield report
            began = time.monotonic()


def _reports(
    root: Path, asked: Sequence[Lesson], timeout: float, out: Screen
) -> Generator[Report, None, None]:
    from amp_lab.course.checking import lessons as checking

    def show(step: Step) -> None:
        out.step(step.doing, step.done, step.total)

    try:
        with closing(checking.check(root, asked, timeout, show)) as reports:
            yield from reports
    except OSError as error:
        raise click.ClickException(f"cannot check in {root / 'work'}: {error}") from error


def _remember(root: Path, report: Report) -> None:
    from amp_lab.course.learner import progress

    if os.environ.get("CI"):  # nobody learns there
        return
    for result in report.results:
        if result.kind == "right":
            progress.add(root, result.exercise.id)


def _tell(report: Report, seconds: float, out: Screen, solved: Mapping[str, datetime]) -> None:
    lesson, results = report.lesson, report.results
    out.say("")
    out.say(f"{lesson.number} {lesson.title}")
    if report.problem:
        out.say(f"  ! not run: {report.problem}", "red")
        return
    marks = _MARKS if out.can_show("".join(_MARKS.values())) else _PLAIN_MARKS
    for result in results:
        out.say(f"  {marks[result.kind]} {_line(result)}", _COLOURS[result.kind])
    for remark in (*report.remarks, *_once_right(results, solved)):
        out.say(f"  Note: {remark}.")
    right = sum(result.kind == "right" for result in results)
    out.say(f"  {right} of {len(results)} exercises right, {seconds:.0f} s")


def _once_right(results: Sequence[Result], solved: Mapping[str, datetime]) -> Iterator[str]:
    """Say what `amp-lab progress` counts as done though it is not so now; `solved` tells when it was."""
    lost = [
        each.exercise.id for each in results if each.kind in ("wrong", "open") and each.exercise.id in solved
    ]
    for day, names in groupby(lost, lambda name: solved[name].strftime("%d %b %Y").lstrip("0")):
        ids = list(names)
        were, them = ("was", "it") if len(ids) == 1 else ("were", "them")
        yield f"{', '.join(ids)} {were} right on {day}, and `amp-lab progress` still counts {them}"


def _how_to_go_on(reports: Sequence[Report]) -> Iterator[str]:
    left = [
        each.exercise.id for report in reports for each in report.results if each.kind in ("wrong", "open")
    ]
    if left:
        yield f"`amp-lab hint {left[0]}` shows a hint."


def _line(result: Result) -> str:
    took = "" if result.seconds is None else f" ({result.seconds:.{1 if result.seconds >= 1 else 2}f} s)"
    why = f": {result.why}" if result.why else ""
    return f"{result.exercise.id} {result.exercise.title}: {result.outcome}{took}{why}"


def _status(reports: Sequence[Report]) -> int:
    kinds = {result.kind for report in reports for result in report.results}
    if any(report.problem for report in reports) or kinds & {"wrong", "open", "not run"}:
        return 1
    return 3 if "not checked" in kinds else 0
