"""Bring the course's new text into a learner's copy, cell by cell. Nothing touches the disk.

Three pages meet: the copy, the blank it was made from (`old`), and the course's blank of today (`new`). The merged
page is `new`, all of it and in its order, with everything in it that the learner wrote:

- code for an exercise stands in its cell again;
- a cell of the course that only the learner changed stays as the learner has it;
- one that both changed stands right after its new version;
- a cell that the learner added stands after the cell that it followed, or before the same exercise.

Nobody's code is rewritten. If an exercise asks for something else now, there are two cases. While it is still about
the same function, the learner's code stays, and a text cell above it shows the new beginning. If the function
has another name, the code stands before the new, empty exercise: so the page runs, and says what is open.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from amp_lab.course.pages.cells import Cell, Notebook
from amp_lab.course.pages.source import STUB, content_digest

_DEFINITION = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_BUILT_ID = re.compile(r"[0-9a-f]{8}-\d+")
_CALL_OF_CHECK = re.compile(r'check\("[\d.]+", \w+\)')
_NOTE = "new-"  # before the id of the stub that it is about
_ALIKE = 0.4  # of its words; less, and one cell is not taken for the new version of another
_BEFORE_ALL = -1


class Merged(NamedTuple):
    """The merged page, and what there is to tell: ids of exercises, and numbers of cells."""

    notebook: Notebook
    carried: tuple[str, ...]  # the learner's code is in its place
    changed: tuple[str, ...]  # the exercise is not what it was, wherever the learner's answer stands now
    apart: tuple[str, ...]  # it is what it was, but what the learner made of its cell cannot stand in it
    kept: int  # other cells that the learner wrote
    back: int  # cells of the course that the learner had deleted


def merge(copy: Notebook, old: Notebook | None, new: Notebook) -> Merged:
    """Return `copy` with the text of `new`; no argument is changed.

    `old` is the blank that the copy was made from. Where nobody knows it any more (None), the cells that are
    surely the course's own are replaced, and all others are taken to be the learner's.
    """
    merging = _Merging(copy, old, new)
    for cell, course_id in zip(copy["cells"], merging.identities(), strict=True):
        merging.take(dict(cell), course_id)
    return merging.finish()


def same_text(page: Notebook, other: Notebook) -> bool:
    """Tell whether two pages say the same: the same kinds of cells with the same sources in the same order."""
    return [(_kind(cell), _text(cell)) for cell in page["cells"]] == [
        (_kind(cell), _text(cell)) for cell in other["cells"]
    ]


def cells_from(page: Notebook, blank: Notebook, by_id: bool = True) -> int:
    """Count the cells of a page that are as they stand in a blank; `by_id=False` is for a page that lost its ids."""

    def known(book: Notebook) -> set[tuple[object, str]]:
        return {(_id(cell) if by_id else _kind(cell), _text(cell)) for cell in book["cells"]}

    return len(known(page) & known(blank))


def has_ids_of(page: Notebook, blank: Notebook) -> bool:
    """Tell whether any cell of a page has its id from a blank."""
    return ids_missing(page, blank) < len(_ids(blank))


def ids_missing(page: Notebook, blank: Notebook) -> int:
    """Count the ids of a blank that no cell of a page has."""
    return len(_ids(blank) - _ids(page))


def functions(page: Notebook) -> frozenset[str]:
    """Return the names of the functions and classes that code cells define at their margin."""
    return frozenset(name for cell in page["cells"] if _kind(cell) == "code" for name in _defined(cell))


def without_note(page: Notebook, exercise_id: str) -> Notebook:
    """Return a page less the notes that a merge put above an exercise; a note that was written into stays."""
    start = f"{_NOTE}stub-{exercise_id.replace('.', '-')}-"
    rest = [cell for cell in page["cells"] if not (_is_note(cell) and str(_id(cell)).startswith(start))]
    return {**page, "cells": rest}


class _Merging:
    """One merge in progress. A cell of the new blank is meant by its index, its `slot`."""

    def __init__(self, copy: Notebook, old: Notebook | None, new: Notebook) -> None:
        self.copy, self.old_page, self.new = copy, old, new
        self.cells: list[Cell] = copy["cells"]
        self.sure = old is not None
        self.old = {cell["id"]: cell for cell in (old or _guessed(copy, new))["cells"]}
        self.slots: list[Cell] = [dict(cell) for cell in new["cells"]]
        self.slot_of = _successors(list(self.old.values()), self.slots)
        self.filled: set[int] = set()
        self.before: dict[int, list[Cell]] = {slot: [] for slot in range(len(self.slots))}
        self.after: dict[int, list[Cell]] = {slot: [] for slot in range(_BEFORE_ALL, len(self.slots))}
        self.anchor = _BEFORE_ALL
        self.waiting: list[Cell] = []  # the learner's, until it is known what they stand before
        self.taken: set[int] = set()  # slots in which the learner's text stands
        notes = [_note(cell) for cell in new["cells"] if _is_stub_id(cell["id"])]
        self.noted = {note["id"] for note in notes for cell in self.cells if _same(cell, note)}
        self.notes: dict[int, Cell] = {}
        self.carried: list[str] = []
        self.changed: list[str] = []
        self.apart: list[str] = []

    # --- which cell of the course is which cell of the copy ---

    def identities(self) -> list[str | None]:
        """Return for each cell of the copy the id of the course's cell that it is, or None: the learner's own."""
        known = {**{cell["id"]: cell for cell in self.new["cells"]}, **self.old}
        found = self._by_id(known)
        self._by_text(known, found)
        self._by_definition(known, found)
        course_ids = {index: course_id for course_id, index in found.items()}
        return [course_ids.get(index) for index in range(len(self.cells))]

    def _by_id(self, known: dict[str, Cell]) -> dict[str, int]:
        """JupyterLab keeps ids. Of cells that share one (a hand-made copy) the last that was worked on counts."""
        found: dict[str, int] = {}
        for index, cell in enumerate(self.cells):
            course_id = _id(cell)
            if course_id in known and (course_id not in found or not _same(cell, known[course_id])):
                found[course_id] = index
        return found

    def _by_text(self, known: dict[str, Cell], found: dict[str, int]) -> None:
        """Some programs give every cell a new id: what has not changed is found by what it says."""
        free = [index for index in range(len(self.cells)) if index not in found.values()]
        for course_id, course_cell in known.items():
            if course_id in found:
                continue
            for index in free:
                if _same(self.cells[index], course_cell):
                    found[course_id] = index
                    free.remove(index)
                    break

    def _by_definition(self, known: dict[str, Cell], found: dict[str, int]) -> None:
        """An exercise whose cell has lost its id is found by the function: the last one before the check counts."""
        was_there = self.old if self.sure else known
        for course_id in reversed([each for each in was_there if _is_stub_id(each) and each not in found]):
            names = _defined(known[course_id])
            end = found.get(f"check-{'-'.join(_exercise_of(course_id))}", len(self.cells))
            taken = {index: each for each, index in found.items()}
            for index in reversed(range(end)):
                other, cell = taken.get(index), self.cells[index]
                free = other is None or not (_is_exercise_id(other) or _same(cell, known[other]))
                if free and _kind(cell) == "code" and names and names <= _defined(cell):
                    found.pop(other or "", None)
                    found[course_id] = index
                    break

    # --- where each cell of the copy goes ---

    def take(self, cell: Cell, course_id: str | None) -> None:
        """Give the next cell of the copy its place on the merged page, or leave it out: the course's old text."""
        if course_id is None:
            if not _is_note(cell):
                self.waiting.append(cell)
            return
        slot, old = self.slot_of.get(course_id), self.old.get(course_id)
        if slot is None:  # the course has it no more
            if not _same(cell, old):
                self.waiting.append(cell)
            return
        self._settle(slot)
        self.filled.add(slot)
        now = self.new["cells"][slot]
        if _is_check_id(course_id):
            self._take_check(cell, old, slot)
        elif _same(cell, old) or _same(cell, now):
            if slot not in self.taken:
                self.slots[slot] = _renewed(cell, old, now)
        elif not _text(cell).strip():  # emptied
            pass
        elif _is_stub_id(course_id):
            self._take_answer(cell, old, slot)
        elif _same(now, old):
            self._put_in(slot, cell)
        else:
            self.after[slot].append(cell)

    def _settle(self, slot: int) -> None:
        """Put the waiting cells where they belong, now that the next cell of the course is known."""
        anchored = self.anchor != _BEFORE_ALL and _is_stub_id(self.slots[self.anchor]["id"])
        belong_to_next = _is_stub_id(self.slots[slot]["id"]) and not anchored
        (self.before[slot] if belong_to_next else self.after[self.anchor]).extend(self.waiting)
        self.waiting, self.anchor = [], slot

    def _put_in(self, slot: int, cell: Cell) -> None:
        """Put what the learner wrote in the place of a cell of the course."""
        if slot in self.taken:
            self.after[slot].append(cell)
            return
        now = self.slots[slot]
        self.slots[slot] = {**cell, "id": now["id"], "metadata": {**_metadata(cell), **_metadata(now)}}
        self.taken.add(slot)

    def _take_check(self, cell: Cell, old: Cell | None, slot: int) -> None:
        """A check is always the course's, and not run yet: it may judge otherwise now."""
        text = _text(cell).strip()
        ours = {_text(each).strip() for each in (self.new["cells"][slot], old or {})}
        if text and text not in ours and (self.sure or not _CALL_OF_CHECK.fullmatch(text)):
            self.after[slot].append(cell)

    def _take_answer(self, cell: Cell, old: Cell | None, slot: int) -> None:
        stub = self.new["cells"][slot]
        exercise_id = ".".join(_exercise_of(stub["id"]))
        if not self._fits(cell, old, stub):
            self.before[slot].append(cell)
            (self.apart if _same(stub, old) else self.changed).append(exercise_id)
            return
        self._put_in(slot, cell)
        self.carried.append(exercise_id)
        told = _NOTE + stub["id"] in self.noted
        if _beginning(stub) in _text(cell) or (self.sure and _same(stub, old) and not told):
            return
        self.notes[slot] = _note(stub)
        if not told:
            self.changed.append(exercise_id)

    def _fits(self, cell: Cell, old: Cell | None, stub: Cell) -> bool:
        """Tell whether the learner's code can stand in the exercise's cell."""
        if _kind(cell) != "code":
            return False
        names = _defined(stub)
        if names <= _defined(cell):
            return True
        return self.sure and names <= _defined(old or {})

    # --- the page ---

    def finish(self) -> Merged:
        """Return the merged page."""
        self.after[self.anchor].extend(self.waiting)
        kept = sum(
            1 for place in (*self.before.values(), *self.after.values()) for cell in place if _text(cell)
        )
        were_there = {self.slot_of[course_id] for course_id in self.old if course_id in self.slot_of}
        metadata = {**_metadata(self.new), **_own_metadata(self.copy, self.old_page)}
        # Cells have ids since 4.5.
        form = {"nbformat": 4, "nbformat_minor": 5}
        page = {**self.copy, "cells": self._named(), "metadata": metadata, **form}
        carried, changed, apart = (_once(names) for names in (self.carried, self.changed, self.apart))
        return Merged(page, carried, changed, apart, kept, len(were_there - self.filled))

    def _in_order(self) -> Iterator[tuple[Cell, bool]]:
        """Yield each cell, and whether it has its id from the course."""
        yield from ((cell, False) for cell in self.after[_BEFORE_ALL])
        for slot, cell in enumerate(self.slots):
            yield from ((each, False) for each in self.before[slot])
            if slot in self.notes:
                yield self.notes[slot], True
            yield cell, True
            yield from ((each, False) for each in self.after[slot])

    def _named(self) -> list[Cell]:
        """Give ids to cells that have none, or one that somebody else has or could have."""
        cells = list(self._in_order())
        used = {cell["id"] for cell, ours in cells if ours}
        for cell, ours in cells:
            if ours:
                continue
            own = _id(cell)
            if own is None or own in used or _is_exercise_id(own) or own.startswith(_NOTE):
                own = _free_id(cell, used)
            cell["id"] = own
            used.add(own)
        return [cell for cell, _ in cells]


# --- the course's own cells ---------------------------------------------------------------------------------


def _guessed(copy: Notebook, new: Notebook) -> Notebook:
    """Return what is known of an unknown blank: cells of the copy whose ids prove that they are the course's."""
    now = {cell["id"]: cell for cell in new["cells"]}
    found: dict[str, Cell] = {}
    for cell in copy["cells"]:
        course_id = _id(cell)
        if course_id is None or course_id in found:
            continue
        if _BUILT_ID.fullmatch(course_id) and course_id[:8] == content_digest(_kind(cell), _text(cell)):
            found[course_id] = cell
        elif course_id in now:
            found[course_id] = now[course_id]
    return {"cells": list(found.values())}


def _successors(old: Sequence[Cell], new: Sequence[Cell]) -> dict[str, int]:
    """Map the id of each cell to the index of what it has become in the new blank, if anything."""
    found = {cell["id"]: slot for slot, cell in enumerate(new)} | _renumbered(old, new)
    return found | _rewritten(old, new, found)


def _renumbered(old: Sequence[Cell], new: Sequence[Cell]) -> dict[str, int]:
    """Find the exercises that have another number now: the same function tells."""
    stubs = [(slot, cell) for slot, cell in enumerate(new) if _is_stub_id(cell["id"])]
    found = {}
    for cell in old:
        names = _defined(cell)
        if not _is_stub_id(cell["id"]) or not names:
            continue
        same = [(slot, stub["id"]) for slot, stub in stubs if _defined(stub) == names]
        if len(same) == 1 and same[0][1] != cell["id"]:
            found[cell["id"]] = same[0][0]
    return found


def _rewritten(old: Sequence[Cell], new: Sequence[Cell], found: dict[str, int]) -> dict[str, int]:
    """Pair cells that are gone with new ones between the same neighbours: of the same kind, with most words alike."""
    old_ids = {cell["id"] for cell in old}
    fresh = {
        slot
        for slot, cell in enumerate(new)
        if not {cell["id"]} & old_ids and not _is_exercise_id(cell["id"])
    }
    pairs: dict[str, int] = {}
    start = -1
    for index, cell in enumerate(old):
        if cell["id"] in found:
            start = found[cell["id"]]
            continue
        if _is_exercise_id(cell["id"]):
            continue
        end = next((found[each["id"]] for each in old[index:] if each["id"] in found), len(new))
        between = [
            slot for slot in range(start + 1, end) if slot in fresh and _kind(new[slot]) == _kind(cell)
        ]
        likeness = {slot: _likeness(cell, new[slot]) for slot in between}
        best = max(likeness, key=likeness.__getitem__, default=None)
        if best is not None and likeness[best] >= _ALIKE:
            pairs[cell["id"]] = best
            fresh.discard(best)
    return pairs


def _likeness(cell: Cell, other: Cell) -> float:
    return difflib.SequenceMatcher(None, _text(cell).split(), _text(other).split(), autojunk=False).ratio()


def _renewed(cell: Cell, old: Cell | None, new: Cell) -> Cell:
    """Return a cell that the learner did not change as it is now; its outputs stay while its text does."""
    renewed = {**cell, **new, "metadata": {**_own_metadata(cell, old), **_metadata(new)}}
    if _kind(new) == "code" and _same(cell, new):
        results = ("outputs", "execution_count")
        renewed |= {key: cell[key] for key in results if key in cell}
    return renewed


def _note(stub: Cell) -> Cell:
    """Return the text cell that shows what an exercise's cell looks like now."""
    number = ".".join(_exercise_of(stub["id"]))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", _text(stub))), default=0))
    text = (
        f"**Exercise {number} has changed.** Your code stands below as you left it. The cell begins like this now:"
        f"\n\n{fence}python\n{_text(stub)}\n{fence}"
    )
    source = text.splitlines(keepends=True)
    return {"cell_type": "markdown", "id": _NOTE + stub["id"], "metadata": {}, "source": source}


def _is_note(cell: Cell) -> bool:
    """Tell whether a cell is a note as a merge wrote it, of whatever version of the stub."""
    name, text = str(_id(cell)), _text(cell)
    if not name.startswith(_NOTE + "stub-") or _kind(cell) != "markdown":
        return False
    fenced = re.fullmatch(r".*\n\n(`{3,})python\n(.*)\n\1", text, re.DOTALL)
    if not fenced:
        return False
    stub = {"id": name.removeprefix(_NOTE), "source": fenced[2]}
    return text == _text(_note(stub)) and STUB in fenced[2]


def _beginning(stub: Cell) -> str:
    """Return what a stub says before the hole in it."""
    return _text(stub).partition(STUB)[0].rstrip()


def _defined(cell: Cell) -> frozenset[str]:
    """Return the names of a cell's functions and classes. Half-written code has them, too."""
    return frozenset(_DEFINITION.findall(_text(cell)))


# --- ids and texts ------------------------------------------------------------------------------------------


def _is_stub_id(course_id: str) -> bool:
    return course_id.startswith("stub-")


def _is_check_id(course_id: str) -> bool:
    return course_id.startswith("check-")


def _is_exercise_id(course_id: str) -> bool:
    return _is_stub_id(course_id) or _is_check_id(course_id)


def _exercise_of(course_id: str) -> list[str]:
    """Return the two numbers in the id of an exercise's cell."""
    return course_id.split("-")[1:3]


def _free_id(cell: Cell, used: set[str]) -> str:
    name = f"kept-{content_digest(_kind(cell), _text(cell))}"
    number = 1
    while (candidate := name if number == 1 else f"{name}-{number}") in used:
        number += 1
    return candidate


def _id(cell: Cell) -> str | None:
    """Return a cell's id; notebooks of older programs have none."""
    found = cell.get("id")
    return found if isinstance(found, str) and found else None


def _ids(book: Notebook) -> set[str]:
    return {found for cell in book["cells"] if (found := _id(cell)) is not None}


def _kind(cell: Cell) -> str:
    return str(cell.get("cell_type"))


def _text(cell: Cell) -> str:
    """Return a cell's source, which the format allows to be one text or a list of lines."""
    source: Any = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _metadata(cell: Cell) -> dict[str, Any]:
    found = cell.get("metadata")
    return found if isinstance(found, dict) else {}


def _own_metadata(mine: Cell, old: Cell | None) -> dict[str, Any]:
    """Return the metadata of a cell or page that are not as they came from the course."""
    before = _metadata(old or {})
    return {key: value for key, value in _metadata(mine).items() if before.get(key) != value}


def _same(cell: Cell, other: Cell | None) -> bool:
    return other is not None and _kind(cell) == _kind(other) and _text(cell) == _text(other)


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
