"""The page that is run for a learner's copy.

What is run is not the copy, but a notebook made from it: its code cells in their order, no outputs, no tags, and
every check cell as in the course's blank (`cells.with_checks`). So it does not matter whether the copy was saved in
the middle of a run, or whether a check cell was deleted, edited, tagged `nbval-skip`, doubled or turned into text. An
exercise that is answered below its check, in a new cell, is checked once more there, and what comes of it last counts.
It is right only if its check cell ran and showed a proof (`evidence`): a page that redefines `check`, or that keeps
cells from running, has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from amp_lab.course import catalog
from amp_lab.course.catalog import Exercise, Lesson
from amp_lab.course.checking import evidence, shadows
from amp_lab.course.checking.run import Event
from amp_lab.course.learner import disk
from amp_lab.course.pages import cells, source

LARGEST_BYTES = 200_000_000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f-\x9f]")
_LONGEST_EXCERPT = 40


class Unreadable(Exception):
    """This copy cannot be checked; the message says why."""


class PageCell(NamedTuple):
    """A cell of the page that is run; `exercise` is the one that it checks."""

    id: str
    text: str
    exercise: Exercise | None

    @property
    def excerpt(self) -> str:
        """Name the cell: JupyterLab shows no numbers of cells."""
        first = next(line.strip() for line in self.text.splitlines() if line.strip())
        return clean(first if len(first) <= _LONGEST_EXCERPT else f"{first[: _LONGEST_EXCERPT - 1]}…")


@dataclass(eq=False)
class Page:
    """A lesson to check: its code cells, and the events that tell how they ended, by the cells' ids.

    `hiding` are files beside it that hide a module from it (see `shadows`).
    """

    lesson: Lesson
    cells: tuple[PageCell, ...]
    hiding: Sequence[str] = ()
    ended: dict[str, Event] = field(default_factory=dict)
    at: PageCell | None = None  # the cell that began last

    @property
    def begun(self) -> bool:
        return self.at is not None

    def take(self, event: Event) -> None:
        self.at = next(cell for cell in self.cells if cell.id == event["cell"])
        if "outcome" in event:
            self.ended[self.at.id] = event


def read(lesson: Lesson, copy: Path, blank: Path) -> Page:
    """Return the page to run for a learner's copy; raises Unreadable."""
    notebook = _notebook(copy, lesson)
    try:
        pristine = cells.parse(blank.read_bytes())
        page = tuple(_page_cells(cells.with_checks(notebook, pristine), pristine))
        return Page(lesson, page, shadows.hiding(copy.parent))
    except (OSError, cells.NotANotebook, LookupError) as error:
        raise Unreadable(f"{blank} is not the course's file ({error}): get the checkout again") from None


def _notebook(copy: Path, lesson: Lesson) -> cells.Notebook:
    data = _bytes_of(copy)
    try:
        return cells.parse(data)
    except cells.NotANotebook as error:
        if _is_of_an_old_format(data):
            raise Unreadable(
                f"{copy} is in an old format of notebooks: open it in JupyterLab and save it, which renews it"
            ) from None
        raise Unreadable(
            f"{copy} cannot be read as a notebook ({error}): `amp-lab reset {lesson.number}` starts the lesson over "
            "and keeps this file as a backup"
        ) from None


def _bytes_of(copy: Path) -> bytes:
    try:
        size = copy.stat().st_size
        if size > LARGEST_BYTES:
            raise Unreadable(
                f"{copy} is {size / 1e6:,.0f} MB large: in JupyterLab, Edit, Clear Outputs of All Cells, then save"
            )
        return disk.read(copy)
    except OSError as error:
        raise Unreadable(f"cannot read {disk.in_words(error)}") from None


def _is_of_an_old_format(data: bytes) -> bool:
    """Tell whether this is a notebook of before 2014 (nbformat 1 to 3): JupyterLab reads it and saves one of today."""
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        return isinstance(found, dict) and found.get("nbformat") in (1, 2, 3)
    return False


def _page_cells(found: Sequence[cells.Cell], blank: cells.Notebook) -> Iterator[PageCell]:
    """Yield what is run: each check where it stands, and once more below the last cell that answers it again."""
    page = list(_cells_in_order(found, blank))
    again = [(_answered_again(page, cell), cell) for cell in page if cell.exercise]
    for number, cell in enumerate(page):
        yield cell
        for place, check in again:
            if place == number:
                yield check._replace(id=f"{check.id}-again")


def _answered_again(page: Sequence[PageCell], check: PageCell) -> int | None:
    """Return the place of the last cell below a check that binds the exercise's name, or checks it, or None."""
    assert check.exercise is not None
    name, number = re.escape(check.exercise.function), re.escape(check.exercise.id)
    written = rf"^%%writefile\b[^\n]*\b{re.escape(check.exercise.file)}\s*$"
    bound = (
        rf"^[ \t]*(?:async +)?(?:def|class) +{name}\b|^{name}\s*(?:[,:][^=\n]*)?=(?!=)|"
        rf"^(?:from|import)\b[^\n]*\b{name}\b"
    )
    asked = rf"^[ \t]*check\(\s*['\"]{number}['\"]"
    answer = re.compile(f"{written if check.exercise.file else bound}|{asked}", re.MULTILINE)
    below = range(page.index(check) + 1, len(page))
    places = [place for place in below if not page[place].exercise and answer.search(page[place].text)]
    return places[-1] if places else None


def _cells_in_order(found: Sequence[cells.Cell], blank: cells.Notebook) -> Iterator[PageCell]:
    checks = source.check_cells(blank)
    pristine = [cell for cell in blank["cells"] if cell["id"] in checks]
    for number, cell in enumerate(found, start=1):
        text = cells.text_of(cell)
        if any(cell is check for check in pristine):
            yield PageCell(cell["id"], evidence.asking_for_proof(text), catalog.exercise(checks[cell["id"]]))
        elif cell.get("cell_type") == "code" and text.strip():
            yield PageCell(f"page-{number}", text, None)


def notebook_of(page: Page) -> bytes:
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


def clean(text: str) -> str:
    """Return a text of the learner's code in one line that cannot steer a terminal."""
    return " ".join(_CONTROL.sub(" ", text).split())
