"""What the events of a page mean: what came of each exercise, and what else its learner should know."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from amp_lab.course.catalog import Exercise, Lesson
from amp_lab.course.checking import evidence
from amp_lab.course.checking.page import Page, PageCell, clean
from amp_lab.course.checking.run import Event

_IMPORT = re.compile(r"\b(?:ImportError|ModuleNotFoundError|AttributeError:.* module)\b")
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")

Kind = Literal["right", "wrong", "open", "not checked", "not run"]


@dataclass(frozen=True)
class Result:
    """What came of one exercise: `outcome` in words, `why` as one sentence or empty, seconds of the check or None."""

    exercise: Exercise
    kind: Kind
    outcome: str
    why: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Report:
    """What came of a lesson; `problem` says why nothing of it could be run, `remarks` what else was noticed."""

    lesson: Lesson
    results: tuple[Result, ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str = ""


def report_of(page: Page, cell_timeout_s: float, broken: str = "") -> Report:
    """Judge a page by its events; `broken` says why they end early, if nbval broke down."""
    stopped = _why_stopped(page, cell_timeout_s) or broken
    found: dict[str, Result] = {}
    for cell in page.cells:
        if cell.exercise:
            result = _result(cell, page.ended.get(cell.id), stopped)
            found[cell.exercise.id] = _last(found.get(cell.exercise.id), result)
    return Report(page.lesson, tuple(found.values()), tuple(_remarks(page)))


def _last(earlier: Result | None, result: Result) -> Result:
    """Return what counts if an exercise was checked twice: the later, if there is anything to it."""
    if earlier is None or earlier.kind != "right":
        return result
    if result.kind == "not run":
        return earlier
    if result.kind in ("wrong", "open"):
        return replace(result, why=f"{result.why} (At its check above it was right.)".lstrip())
    return result


def _why_stopped(page: Page, cell_timeout_s: float) -> str:
    for cell in page.cells:
        stopped = page.ended.get(cell.id, {}).get("stopped", "")
        name = f"the check of {cell.exercise.id}" if cell.exercise else f"the cell `{cell.excerpt}`"
        if stopped == "timeout":
            return f"{name} did not end within {cell_timeout_s:g} s"
        if stopped == "exit":
            return f"{name} called `exit()` or `quit()`, which ends the kernel: delete that call"
        if stopped.startswith(("died", "gone")):
            when = "while" if stopped.startswith("died") else "before"
            return f"the kernel ended {when} {name} ran{_cause(stopped)}"
        if stopped:
            return str(stopped)
    return ""


def _cause(stopped: str) -> str:
    """Say what the exit status of a kernel means: a negative one is a signal."""
    with suppress(ValueError):
        status = int(stopped.split()[1])
        if status >= 0:
            return f" (as `os._exit({status})` ends it)"
        if -status == signal.SIGKILL:
            return " (it was killed; perhaps the memory was full)"
        name = signal.Signals(-status).name
        return f" (it crashed: {name})" if name in _CRASHES else f" ({name} ended it)"
    return ""


def _result(cell: PageCell, event: Event | None, stopped: str) -> Result:
    exercise = cell.exercise
    assert exercise is not None
    if event is None or event["stopped"]:
        return Result(exercise, "not run", "not run", clean(stopped))
    proof = _proof(exercise, event)
    if proof is None:
        return Result(exercise, "not run", "not run", _why_without_proof(exercise, event), event["seconds"])
    why = "" if proof["passed"] else _first_sentence(proof["sentence"])
    return Result(exercise, _kind(proof, event), proof["outcome"], clean(why), event["seconds"])


def _proof(exercise: Exercise, event: Event) -> Event | None:
    """Return the verdict that a check cell showed: exactly one, as `evidence.check` shows it, of this exercise."""
    found = event["verdicts"]
    if len(found) != 1 or not isinstance(found[0], dict) or found[0].keys() != evidence.FIELDS:
        return None
    return found[0] if found[0]["exercise"] == exercise.id else None


def _kind(proof: Event, event: Event) -> Kind:
    if proof["kind"] == "NotChecked":
        return "not checked"
    if proof["kind"] == "NotAttempted":
        return "open"
    return "right" if proof["passed"] and event["outcome"] == "passed" else "wrong"


def _why_without_proof(exercise: Exercise, event: Event) -> str:
    if event["error"] == f"NameError: name '{exercise.function}' is not defined":
        return (
            f"there is no `{exercise.function}` when its check runs: the cell that defines it is gone, is not a "
            "code cell, raised an error or gives it another name"
        )
    if event["error"]:
        return f"its check cell raised {clean(event['error'])}"
    return "its cell was run, but the check in it was not: something on the page keeps cells from running"


def _remarks(page: Page) -> Iterator[str]:
    """Tell of cells that are no checks and failed; a check that the learner pasted is told of already."""
    failed = [
        (cell, event["error"])
        for cell in page.cells
        if not cell.exercise
        and (event := page.ended.get(cell.id)) is not None
        and event["outcome"] == "failed"
        and not event["stopped"]
        and not event["error"].startswith("CheckFailed: ")
    ]
    if failed:
        (cell, error), *more = failed
        others = f"; {len(more)} more failed after it" if more else ""
        yield f"the cell `{cell.excerpt}`, which is no check, raised {clean(error).rstrip('.')}{others}"
    if page.hiding and any(map(_may_be_an_import, page.ended.values())):
        for file in page.hiding:
            yield (
                f"{clean(file)} beside the page hides a module of that name, which Python, the kernel or the page "
                "may need: rename it"
            )


def _may_be_an_import(event: Event) -> bool:
    """Tell whether a cell may have failed because it got another module than it wanted, or the kernel did."""
    words = [event["error"], *map(str, event["verdicts"])]
    return event["stopped"].startswith("Jupyter") or any(map(_IMPORT.search, words))


def _first_sentence(text: str) -> str:
    """Return the first sentence; dots within `code` end none."""
    match = re.match(r"(?:`[^`]*`|[^`])*?[.?!](?= [^a-z]|\s*$)", text, re.DOTALL)
    return match.group() if match else text
