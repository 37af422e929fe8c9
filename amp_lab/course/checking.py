"""Checking a learner's copies from the outside: what `amp-lab check` does, without the words on the terminal.

What is run is not the copy, but a notebook made from it: its code cells in their order, no outputs, no tags, and
every check cell as in the course's blank (`cells.with_checks`). So it does not matter whether the copy was saved in
the middle of a run, or whether a check cell was deleted, edited, tagged `nbval-skip`, doubled or turned into text. An
exercise is right only if its check cell ran and showed a proof (`evidence`): a page that redefines `check`, or that
keeps cells from running, has none.

This finds mistakes; it is no examination. Code on the page runs in the same process as the checks and can, if somebody
wants to, replace any part of them, or show a proof that it made up itself. Who cheats here cheats themselves.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from amp_lab.course import catalog, cells, evidence, nbval_run, source
from amp_lab.course.catalog import Exercise, Lesson
from amp_lab.course.nbval_run import Ended, Event

LARGEST_BYTES = 200_000_000

Kind = Literal["right", "wrong", "open", "not checked", "not run"]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f-\x9f]")
_LONGEST_EXCERPT = 40


class Unreadable(Exception):
    """This copy cannot be checked; the message says why."""


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


class Step(NamedTuple):
    """One step: `done` of `total` cells have ended, and `doing` is the lesson, and the exercise or cell, in words."""

    done: int
    total: int
    doing: str


class PageCell(NamedTuple):
    """A cell of the page that is run; `exercise` is the one that it checks."""

    id: str
    text: str
    exercise: Exercise | None

    @property
    def excerpt(self) -> str:
        """Name the cell: JupyterLab shows no numbers of cells."""
        first = next(line.strip() for line in self.text.splitlines() if line.strip())
        return _clean(first if len(first) <= _LONGEST_EXCERPT else f"{first[: _LONGEST_EXCERPT - 1]}…")


@dataclass(eq=False)
class Page:
    """A lesson to check: its code cells, and the events that tell how they ended, by the cells' ids."""

    lesson: Lesson
    cells: tuple[PageCell, ...]
    ended: dict[str, Event] = field(default_factory=dict)
    at: PageCell | None = None  # the cell that began last

    @property
    def begun(self) -> bool:
        return self.at is not None

    def take(self, event: Event) -> None:
        self.at = next(cell for cell in self.cells if cell.id == event["cell"])
        if "outcome" in event:
            self.ended[self.at.id] = event


def check(
    root: Path,
    lessons: Iterable[Lesson],
    cell_timeout_s: float,
    show: Callable[[Step], None] = lambda step: None,
) -> Generator[Report, None, None]:
    """Check the learner's copies of lessons, and yield the report of each as soon as it is there.

    `show` is called at every step. Copies that cannot be read come first, as reports with a `problem`. Raises OSError
    if `work` cannot be written to.
    """
    pages = []
    for lesson in lessons:
        name = f"{lesson.slug}.ipynb"
        try:
            pages.append(read(lesson, root / "work" / name, root / "notebooks" / name))
        except Unreadable as error:
            yield Report(lesson, problem=str(error))
    if pages:
        yield from run(root / "work", pages, cell_timeout_s, show)


def read(lesson: Lesson, copy: Path, blank: Path) -> Page:
    """Return the page to run for a learner's copy; raises Unreadable."""
    try:
        size = copy.stat().st_size
        if size > LARGEST_BYTES:
            raise Unreadable(
                f"{copy} is {size / 1e6:,.0f} MB large: in JupyterLab, Edit, Clear Outputs of All Cells, then save"
            )
        notebook = cells.parse(copy.read_bytes())
    except OSError as error:
        raise Unreadable(f"{copy} cannot be read: {error.strerror}") from None
    except cells.NotANotebook as error:
        raise Unreadable(
            f"{copy} cannot be read as a notebook ({error}): `amp-lab reset {lesson.number}` starts the lesson over "
            "and keeps this file as a backup"
        ) from None
    try:
        pristine = cells.parse(blank.read_bytes())
        return Page(lesson, tuple(_page_cells(cells.with_checks(notebook, pristine), pristine)))
    except (OSError, cells.NotANotebook, LookupError) as error:
        raise Unreadable(f"{blank} is not the course's file ({error}): get the checkout again") from None


def _page_cells(found: Sequence[cells.Cell], blank: cells.Notebook) -> Iterator[PageCell]:
    checks = source.check_cells(blank)
    pristine = [cell for cell in blank["cells"] if cell["id"] in checks]
    for number, cell in enumerate(found, start=1):
        text = cells.text_of(cell)
        if any(cell is check for check in pristine):
            yield PageCell(cell["id"], evidence.asking_for_proof(text), catalog.exercise(checks[cell["id"]]))
        elif cell.get("cell_type") == "code" and text.strip():
            yield PageCell(f"page-{number}", text, None)


def _notebook(page: Page) -> bytes:
    """Return the notebook that nbval runs: code cells, and nothing that steers it."""
    code: list[cells.Cell] = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": cell.id,
            "metadata": {},
            "outputs": [],
            "source": cell.text,
        }
        for cell in page.cells
    ]
    return cells.dump({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def run(
    work: Path,
    pages: Sequence[Page],
    cell_timeout_s: float,
    show: Callable[[Step], None] = lambda step: None,
) -> Iterator[Report]:
    """Run pages in one process of nbval and yield the report of each when it is through, in their order.

    Should the process break down, the page that it was at is lost, and the next ones get another. Raises OSError if
    `work` cannot be written to.
    """
    with nbval_run.beside(work, {page.lesson.slug: _notebook(page) for page in pages}) as names:
        show(Step(0, _count(pages), "starting"))
        waiting = list(zip(names, pages, strict=True))
        while waiting:
            reason = ""
            try:
                for page in _run_once(work, dict(waiting), cell_timeout_s, pages, show):
                    yield report(page, cell_timeout_s)
                    waiting = [each for each in waiting if each[1] is not page]
            except Ended as error:
                reason = str(error)
            lost = [each for each in waiting if each[1].begun] or waiting
            for _, page in lost:
                yield report(page, cell_timeout_s, reason or "nbval did not run this page")
            waiting = [each for each in waiting if each not in lost]


def _run_once(
    work: Path,
    waiting: Mapping[str, Page],
    cell_timeout_s: float,
    pages: Sequence[Page],
    show: Callable[[Step], None],
) -> Iterator[Page]:
    """Yield each page when all that runs of it has run."""
    with nbval_run.nbval(work, list(waiting), cell_timeout_s) as events:
        current = None
        for event in events:
            page = waiting[event["page"]]
            if current is not None and page is not current:
                yield current
            current = page
            page.take(event)
            show(_step(pages, page))
        if current is not None:
            yield current


def _step(pages: Sequence[Page], page: Page) -> Step:
    assert page.at is not None
    here = f"cell {page.cells.index(page.at) + 1} of {len(page.cells)}"
    what = f"exercise {page.at.exercise.id}" if page.at.exercise else here
    done = _count(pages[: pages.index(page)]) + len(page.ended)
    return Step(done, _count(pages), f"{page.lesson.number} {page.lesson.title}: {what}")


def _count(pages: Sequence[Page]) -> int:
    return sum(len(page.cells) for page in pages)


# --- what the events mean -----------------------------------------------------------------------------------


def report(page: Page, cell_timeout_s: float, broken: str = "") -> Report:
    """Judge a page by its events; `broken` says why they end early, if nbval broke down."""
    stopped = _why_stopped(page, cell_timeout_s) or broken
    results = tuple(_result(cell, page.ended.get(cell.id), stopped) for cell in page.cells if cell.exercise)
    return Report(page.lesson, results, tuple(_remarks(page)))


def _why_stopped(page: Page, cell_timeout_s: float) -> str:
    for cell in page.cells:
        stopped = page.ended.get(cell.id, {}).get("stopped", "")
        name = f"the check of {cell.exercise.id}" if cell.exercise else f"the cell `{cell.excerpt}`"
        if stopped == "timeout":
            return f"{name} did not end within {cell_timeout_s:g} s"
        if stopped.startswith("died"):
            return f"{name} ended the kernel, or the cell before it did{_cause(stopped)}"
        if stopped:
            return str(stopped)
    return ""


def _cause(stopped: str) -> str:
    """Say what the exit status of a kernel means: a negative one is a signal."""
    with suppress(ValueError):
        number = signal.Signals(-int(stopped.removeprefix("died ")))
        if number == signal.SIGKILL:
            return " (it was killed; perhaps the memory was full)"
        return f" (it crashed: {number.name})"
    return ""


def _result(cell: PageCell, event: Event | None, stopped: str) -> Result:
    exercise = cell.exercise
    assert exercise is not None
    if event is None or event["stopped"]:
        return Result(exercise, "not run", "not run", _clean(stopped))
    proof = _proof(exercise, event)
    if proof is None:
        return Result(exercise, "not run", "not run", _why_without_proof(exercise, event), event["seconds"])
    why = "" if proof["passed"] else _first_sentence(proof["sentence"])
    return Result(exercise, _kind(proof, event), proof["outcome"], _clean(why), event["seconds"])


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
            "code cell, or raised an error"
        )
    if event["error"]:
        return f"its check cell raised {_clean(event['error'])}"
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
        yield f"the cell `{cell.excerpt}`, which is no check, raised {_clean(error).rstrip('.')}{others}"


def _first_sentence(text: str) -> str:
    """Return the first sentence; dots within `code` end none."""
    match = re.match(r"(?:`[^`]*`|[^`])*?[.?!](?= [^a-z]|\s*$)", text, re.DOTALL)
    return match.group() if match else text


def _clean(text: str) -> str:
    """Return a text of the learner's code in one line that cannot steer a terminal."""
    return " ".join(_CONTROL.sub(" ", text).split())
