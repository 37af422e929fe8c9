"""Checking a learner's copies from the outside: what `amp-lab check` does, without the words on the terminal.

This finds mistakes; it is no examination. Code on the page runs in the same process as the checks and can, if somebody
wants to, replace any part of them, or show a proof that it made up itself. Who cheats here cheats themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from amp_lab.course.catalog import Lesson
from amp_lab.course.checking.page import Page, Unreadable, notebook_of, read
from amp_lab.course.checking.report import Report, report_of
from amp_lab.course.checking.run import Ended, beside, nbval
from amp_lab.course.learner import workspace


class Step(NamedTuple):
    """One step: `done` of `total` cells have ended, and `doing` is the lesson, and the exercise or cell, in words."""

    done: int
    total: int
    doing: str


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
        try:
            pages.append(_page(root, lesson))
        except Unreadable as error:
            yield Report(lesson, problem=str(error))
    if pages:
        yield from run(root / "work", pages, cell_timeout_s, show)


def _page(root: Path, lesson: Lesson) -> Page:
    if found := workspace.obstacle(root, lesson.slug):
        raise Unreadable(found)
    name = f"{lesson.slug}.ipynb"
    return read(lesson, root / "work" / name, root / "notebooks" / name)


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
    with beside(work, {page.lesson.slug: notebook_of(page) for page in pages}) as names:
        show(Step(0, _count(pages), "starting"))
        waiting = list(zip(names, pages, strict=True))
        while waiting:
            reason = ""
            try:
                for page in _run_once(work, dict(waiting), cell_timeout_s, pages, show):
                    yield report_of(page, cell_timeout_s)
                    waiting = [each for each in waiting if each[1] is not page]
            except Ended as error:
                reason = str(error)
            lost = [each for each in waiting if each[1].begun] or waiting
            for _, page in lost:
                yield report_of(page, cell_timeout_s, reason or "nbval did not run this page")
            waiting = [each for each in waiting if each not in lost]


def _run_once(
    work: Path,
    waiting: Mapping[str, Page],
    cell_timeout_s: float,
    pages: Sequence[Page],
    show: Callable[[Step], None],
) -> Iterator[Page]:
    """Yield each page when all that runs of it has run."""
    with nbval(work, list(waiting), cell_timeout_s) as events:
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
