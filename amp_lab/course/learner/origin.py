"""Which blank a learner's copy comes from: a merge compares the copy, that blank, and the course's blank of today.

The record says so, and it is trusted where it says that a text was never brought in: a page that looks like today's
blank, because the cells in question were edited or deleted, must still be given the new text. It is doubted where it
says that all is new: JupyterLab, told to overwrite, writes an open page of before the update back to the disk. And
records get lost. Then the page is asked: of all blanks that were ever copied, it comes from the one that it has most
cells of.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from amp_lab.course.learner import workspace
from amp_lab.course.pages.cells import NotANotebook, Notebook, parse, text_of
from amp_lab.course.pages.merging import cells_from, has_ids_of, ids_missing


def blank_of(root: Path, slug: str, page: Notebook, today: bytes | None) -> bytes | None:
    """Return the blank that a copy comes from; None if it is not known. `today` is the course's, if it has one."""
    kept = {_digest(each): each for each in workspace.kept_blanks(root, slug)}
    if today is not None:
        kept[_digest(today)] = today
    recorded = workspace.origins(root).get(f"{slug}.ipynb")
    known = {digest: book for digest, each in kept.items() if (book := _parsed(each))}
    if today is not None and recorded in known and kept[recorded] != today:
        known.pop(_digest(today), None)
    found = _most_likely(page, known, recorded, _digest(today or b""))
    return None if found is None else kept[found]


def _most_likely(page: Notebook, known: dict[str, Notebook], recorded: str | None, today: str) -> str | None:
    by_id = any(has_ids_of(page, blank) for blank in known.values())
    there = {digest: cells_from(page, blank, by_id) for digest, blank in known.items()}
    most = max(there.values(), default=0)
    if recorded not in known and (not most or known.keys() == {today}):
        return None
    likely = {digest: known[digest] for digest, number in there.items() if number == most}
    others = {digest: blank for digest, blank in likely.items() if digest not in (recorded, today)}
    if recorded in likely:
        others = {
            digest: blank
            for digest, blank in others.items()
            if _nothing_new(page, known[recorded], blank, by_id)
        }
    # Of equally likely ones the one that the page lacks least of, and an older one: its update brings what is missing.
    return min(
        others or ([recorded] if recorded in likely else likely),
        key=lambda digest: ids_missing(page, known[digest]),
    )


def _nothing_new(page: Notebook, recorded: Notebook, older: Notebook, by_id: bool) -> bool:
    """Tell whether nothing that the recorded blank added to an older one is on a page."""

    def names(book: Notebook) -> set[object]:
        return {cell.get("id") if by_id else text_of(cell) for cell in book["cells"]}

    added = names(recorded) - names(older)
    return bool(added) and not added & names(page)


def _parsed(blank: bytes) -> Notebook | None:
    try:
        return parse(blank)
    except NotANotebook:
        return None


def _digest(blank: bytes) -> str:
    return hashlib.sha256(blank).hexdigest()
