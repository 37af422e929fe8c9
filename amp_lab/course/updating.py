"""When the course was updated under a learner's copies: which have an older text, and how they get the new one.

`merging` makes the new page. Here is decided which blank a copy comes from. The record says so; but JupyterLab, told
to overwrite, writes an open page of before the update back to the disk, and records get lost. So the page is asked,
too: of all blanks that were ever copied, it comes from the one that it has most cells of.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from amp_lab.course import catalog, workspace
from amp_lab.course.catalog import Lesson
from amp_lab.course.cells import NotANotebook, Notebook, dump, parse
from amp_lab.course.merging import Merged, cells_from, merge, same_text
from amp_lab.course.workspace import WorkspaceError


class Updated(NamedTuple):
    """What an update did to a copy. `merged` is None if it was up to date, `backup` if nothing had to be kept."""

    merged: Merged | None
    backup: Path | None
    sure: bool  # False: the blank that it was made from is not known any more


class News(NamedTuple):
    """What changed under the copies: lessons with a new text, and copies whose lesson the course does not have."""

    changed: tuple[Lesson, ...]
    gone: tuple[str, ...]


def news(root: Path) -> News:
    """Compare the copies with the course; a copy that cannot be read is not among them. Nothing is changed."""
    changed = tuple(lesson for lesson in catalog.lessons() if _is_outdated(root, lesson.slug))
    return News(changed, gone(root))


def gone(root: Path) -> tuple[str, ...]:
    """Return the names of recorded copies whose lesson was removed from the course, or renamed."""
    work, blanks = root / "work", root / "notebooks"
    return tuple(
        name
        for name in sorted(workspace.origins(root))
        if (work / name).exists() and not (blanks / name).exists()
    )


def update(root: Path, slug: str) -> Updated:
    """Bring the course's text of today into a copy, and keep what the learner wrote; a second time changes nothing.

    Raises WorkspaceError if there is no copy, or it is no notebook.
    """
    name = f"{slug}.ipynb"
    if not (root / "work" / name).exists():
        raise WorkspaceError(
            f"there is no copy of {slug} in {root / 'work'}: `amp-lab lab {slug[:2]}` makes one"
        )
    said = Updated(None, None, True)

    def make(data: bytes, blank: bytes) -> bytes:
        nonlocal said
        page, new = _page(root / "work" / name, data), _course_page(root / "notebooks" / name, blank)
        source = _blank_of(root, slug, page, blank)
        if source == blank:
            return data
        merged = merge(page, parse(source) if source else None, new)
        said = Updated(merged, None, source is not None)
        if source is None and same_text(merged.notebook, page):
            said = Updated(None, None, False)
            return data
        return blank if data == source else dump(merged.notebook)

    backup = workspace.rewrite(root, slug, make)
    return said._replace(backup=backup)


def started(root: Path) -> tuple[Lesson, ...]:
    """Return the lessons whose copy says anything else than the blank it came from; an unreadable one counts, too."""
    return tuple(lesson for lesson in catalog.lessons() if _is_started(root, lesson.slug))


def _is_started(root: Path, slug: str) -> bool:
    copy = root / "work" / f"{slug}.ipynb"
    try:
        data, blank = copy.read_bytes(), (root / "notebooks" / copy.name).read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if data == blank:
        return False
    try:
        page = parse(data)
        return not same_text(page, parse(_blank_of(root, slug, page, blank) or blank))
    except NotANotebook:
        return True


def _is_outdated(root: Path, slug: str) -> bool:
    copy = root / "work" / f"{slug}.ipynb"
    try:
        data, blank = copy.read_bytes(), (root / "notebooks" / copy.name).read_bytes()
        if data == blank:
            return False
        page = parse(data)
        source = _blank_of(root, slug, page, blank)
        if source is None:
            return not same_text(merge(page, None, parse(blank)).notebook, page)
    except (OSError, NotANotebook):
        return False
    return source != blank


def _blank_of(root: Path, slug: str, page: Notebook, blank: bytes) -> bytes | None:
    """Return the blank that a copy comes from; None if it is not known. `blank` is the one of today."""
    recorded = workspace.origins(root).get(f"{slug}.ipynb")
    candidates = {
        hashlib.sha256(each).hexdigest(): each for each in (*workspace.kept_blanks(root, slug), blank)
    }
    if recorded not in candidates and len(candidates) == 1:
        return None
    # Of equally likely ones the recorded, and else the one of today.
    likely = max(
        candidates,
        key=lambda digest: (
            *_likelihood(page, candidates[digest]),
            digest == recorded,
            candidates[digest] == blank,
        ),
    )
    return candidates[likely]


def _likelihood(page: Notebook, blank: bytes) -> tuple[int, int]:
    """Return how many cells a page has from a blank, and the number of those that it does not have, negative."""
    try:
        cells = parse(blank)
    except NotANotebook:
        return -1, 0
    there = cells_from(page, cells)
    return there, there - len(cells["cells"])


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
