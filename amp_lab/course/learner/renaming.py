"""A lesson whose file has another name now: the learner's page of before the change is brought over, by a merge.

Only pages that are known to be copies of the course's count, not a learner's own. The old page belongs to the lesson
if it has the same number, or the same name after it, and is about the same functions. It stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from amp_lab.course import catalog
from amp_lab.course.catalog import Lesson
from amp_lab.course.learner import disk, workspace
from amp_lab.course.learner.origin import blank_of
from amp_lab.course.pages.cells import NotANotebook, dump, parse
from amp_lab.course.pages.merging import Merged, functions, merge


class Renamed(NamedTuple):
    """A lesson that the learner has under another name: the name of their file in `work/`."""

    lesson: Lesson
    former: str


class Brought(NamedTuple):
    """What was made of the page called `former`; `sure` is False if nobody knows which blank it comes from."""

    lesson: Lesson
    former: str
    merged: Merged
    sure: bool


def renamed(root: Path) -> tuple[Renamed, ...]:
    """Return the lessons without a copy that the learner has a copy of under a former name."""
    found = []
    orphans = _orphans(root)
    for lesson in catalog.lessons() if orphans else ():
        if not os.path.lexists(root / "work" / f"{lesson.slug}.ipynb"):
            likely = {name: _in_common(root, lesson, name) for name in orphans if _alike(name, lesson.slug)}
            best = max(likely, key=likely.__getitem__, default="")
            if likely.get(best):
                found.append(Renamed(lesson, best))
                orphans.remove(best)
    return tuple(found)


def bring_over(root: Path) -> tuple[Brought, ...]:
    """Make the copies of all renamed lessons from the pages of before; raises WorkspaceError."""
    return tuple(_bring(root, lesson, former) for lesson, former in renamed(root))


def _bring(root: Path, lesson: Lesson, former: str) -> Brought:
    said: list[Brought] = []

    def make(data: bytes, today: bytes) -> bytes:
        page = parse(data)
        source = blank_of(root, former.removesuffix(".ipynb"), page, None)
        merged = merge(page, parse(source) if source else None, parse(today))
        said.append(Brought(lesson, former, merged, source is not None))
        return dump(merged.notebook)

    try:
        workspace.make_from(root, lesson.slug, former, make)
    except NotANotebook as error:
        raise workspace.WorkspaceError(
            f"cannot bring {former} over to {lesson.slug}.ipynb: {error}"
        ) from None
    return said[0]


def _orphans(root: Path) -> list[str]:
    """Return the names of the copies whose lesson the course does not have under this name."""
    kept = (re.sub(r"-[0-9a-f]{64}\.ipynb$", ".ipynb", path.name) for path in workspace.all_kept_blanks(root))
    ours = {f"{lesson.slug}.ipynb" for lesson in catalog.lessons()}
    return [
        name
        for name in sorted({*workspace.origins(root), *kept} - ours)
        if os.path.isfile(root / "work" / name) and not os.path.exists(root / "notebooks" / name)
    ]


def _alike(name: str, slug: str) -> bool:
    number, _, rest = name.removesuffix(".ipynb").partition("_")
    return number == slug.partition("_")[0] or rest == slug.partition("_")[2]


def _in_common(root: Path, lesson: Lesson, former: str) -> int:
    """Count the functions of a lesson's exercises that a former page defines."""
    try:
        now = functions(parse(workspace.course_page(root, lesson.slug)))
        page = parse(disk.read(root / "work" / former))
    except (OSError, NotANotebook, workspace.WorkspaceError):
        return 0
    return len(now & functions(page))
