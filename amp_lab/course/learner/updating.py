"""When the course was updated under a learner's copies: which have an older text, and how they get the new one.

`merging` makes the new page, `origin` tells which blank a copy comes from, `renaming` is about lessons whose files
have another name now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from amp_lab.course import catalog
from amp_lab.course.catalog import Lesson
from amp_lab.course.learner import disk, renaming, workspace
from amp_lab.course.learner.origin import blank_of
from amp_lab.course.learner.workspace import WorkspaceError
from amp_lab.course.pages.cells import NotANotebook, Notebook, dump, parse
from amp_lab.course.pages.merging import Merged, merge, same_text


class Updated(NamedTuple):
    """What an update did to a copy. `merged` is None if it was up to date, `backup` if nothing had to be kept."""

    merged: Merged | None
    backup: Path | None
    sure: bool  # False: the blank that it was made from is not known any more


class Damaged(NamedTuple):
    """A page that cannot be read, or that the course has no readable text for."""

    lesson: Lesson
    problem: str
    advice: str


class News(NamedTuple):
    """What changed under the copies.

    Lessons with a new text; copies whose lesson the course does not have; lessons whose file has another name now.
    """

    changed: tuple[Lesson, ...]
    gone: tuple[str, ...]
    renamed: tuple[renaming.Renamed, ...]


def news(root: Path) -> News:
    """Compare the copies with the course; a copy that cannot be read is not among them. Nothing is changed."""
    changed = tuple(lesson for lesson in catalog.lessons() if _is_outdated(root, lesson.slug))
    renamed = renaming.renamed(root)
    former = {each.former for each in renamed}
    return News(changed, tuple(name for name in _gone(root) if name not in former), renamed)


def damaged(root: Path) -> tuple[Damaged, ...]:
    """Return the lessons whose copy cannot be read."""
    return _damaged(root, copied(root), _copy)


def lacking(root: Path) -> tuple[Damaged, ...]:
    """Return the lessons whose blank in the checkout is gone or cannot be read."""
    return _damaged(root, catalog.lessons(), _blank)


def copied(root: Path) -> tuple[Lesson, ...]:
    """Return the lessons that the learner has something of in `work/`, readable or not."""
    return tuple(each for each in catalog.lessons() if os.path.lexists(root / "work" / f"{each.slug}.ipynb"))


def update(root: Path, slug: str) -> Updated:
    """Bring the course's text of today into a copy, and keep what the learner wrote; a second time changes nothing.

    Raises WorkspaceError if there is no copy, or it is no notebook.
    """
    name = f"{slug}.ipynb"
    if not os.path.lexists(root / "work" / name):
        raise WorkspaceError(
            f"there is no copy of {slug} in {root / 'work'}: `amp-lab lab {slug[:2]}` makes one"
        )
    said = Updated(None, None, True)

    def make(data: bytes, blank: bytes) -> bytes | None:
        nonlocal said
        page, new = _page(root / "work" / name, data), _course_page(root / "notebooks" / name, blank)
        source = blank_of(root, slug, page, blank)
        if source == blank:
            return None
        said = said._replace(sure=source is not None)
        merged = merge(page, parse(source) if source else None, new)
        if merged.notebook == page or (source is None and same_text(merged.notebook, page)):
            return data
        said = said._replace(merged=merged)
        return blank if data == source else dump(merged.notebook)

    backup = workspace.rewrite(root, slug, make)
    return said._replace(backup=backup)


def started(root: Path) -> tuple[Lesson, ...]:
    """Return the lessons whose copy says anything else than the blank it came from; an unreadable one counts, too."""
    return tuple(lesson for lesson in catalog.lessons() if _is_started(root, lesson.slug))


def _gone(root: Path) -> tuple[str, ...]:
    """Return the names of recorded copies whose lesson was removed from the course, or renamed."""
    ours = {f"{lesson.slug}.ipynb" for lesson in catalog.lessons()}
    return tuple(
        name
        for name in sorted(workspace.origins(root).keys() - ours)
        if os.path.exists(root / "work" / name) and not os.path.exists(root / "notebooks" / name)
    )


def _is_started(root: Path, slug: str) -> bool:
    copy = root / "work" / f"{slug}.ipynb"
    if not os.path.lexists(copy):
        return False
    try:
        data = disk.read(copy)
        blank = disk.read(root / "notebooks" / copy.name)
        if data == blank:
            return False
        page = parse(data)
        return not same_text(page, parse(blank_of(root, slug, page, blank) or blank))
    except (OSError, NotANotebook):
        return True


def _is_outdated(root: Path, slug: str) -> bool:
    if not os.path.lexists(root / "work" / f"{slug}.ipynb"):
        return False
    try:
        data, blank = _copy(root, slug), _blank(root, slug)
    except WorkspaceError:
        return False
    if data == blank:
        return False
    page = parse(data)
    source = blank_of(root, slug, page, blank)
    if source is None:
        return not same_text(merge(page, None, parse(blank)).notebook, page)
    return source != blank


def _damaged(
    root: Path, lessons: Iterable[Lesson], read: Callable[[Path, str], bytes]
) -> tuple[Damaged, ...]:
    found = []
    for lesson in lessons:
        try:
            read(root, lesson.slug)
        except WorkspaceError as error:
            problem, _, advice = str(error).rpartition(": ")
            found.append(Damaged(lesson, problem, advice))
    return tuple(found)


def _blank(root: Path, slug: str) -> bytes:
    """Return the course's blank of today, which is a notebook; raises WorkspaceError."""
    data = workspace.course_page(root, slug)
    _course_page(root / "notebooks" / f"{slug}.ipynb", data)
    return data


def _copy(root: Path, slug: str) -> bytes:
    """Return a copy, which is a notebook; raises WorkspaceError."""
    path = root / "work" / f"{slug}.ipynb"
    if found := workspace.obstacle(root, slug):
        raise WorkspaceError(found)
    try:
        data = disk.read(path)
    except OSError as error:
        refused = disk.in_words(error)
        advice = refused.advice or f"look at it in {path.parent}"
        raise WorkspaceError(f"cannot read {refused.said}: {advice}") from None
    _page(path, data)
    return data


def _page(path: Path, data: bytes) -> Notebook:
    try:
        return parse(data)
    except NotANotebook as error:
        raise WorkspaceError(
            f"cannot read {path} as a notebook ({error}): `amp-lab reset {path.name[:2]}` starts the lesson over, "
            "and keeps this file as a backup"
        ) from None


def _course_page(path: Path, data: bytes) -> Notebook:
    try:
        page = parse(data)
    except NotANotebook as error:
        raise WorkspaceError(f"{path} is not the course's file ({error}): get the checkout again") from None
    if not all(isinstance(cell.get("id"), str) for cell in page["cells"]):
        raise WorkspaceError(f"{path} is not the course's file (cells without ids): get the checkout again")
    return page
