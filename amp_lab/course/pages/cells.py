"""The cells of an exercise: find them in the course's blank, put them back into a learner's copy.

Notebooks are plain dictionaries here, as `json` reads them; nothing touches the disk.

An exercise is its check cell and the stubs that it checks. The build names both after the exercise, so in the
blank their ids find them. In a copy only the check cell's id can be trusted: JupyterLab keeps ids when it
saves, but gives a pasted cell a new one, and of a split cell the second half keeps the old one. So a stub that
is not there exactly once is put in afresh, and whatever the learner made of the old one stays where it is.
"""

from __future__ import annotations

import json
import os
from typing import Any

from amp_lab.course.pages.source import check_cell_id, check_cells, is_stub_cell_id

Cell = dict[str, Any]
Notebook = dict[str, Any]


class NotANotebook(ValueError):
    """These bytes are no notebook; the message says why."""


def parse(data: bytes) -> Notebook:
    """Return the notebook that these bytes hold; raises NotANotebook."""
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotANotebook(f"no valid JSON: {error}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise NotANotebook("no list of cells in it")
    return dict(notebook)


def dump(notebook: Notebook) -> bytes:
    """Return the bytes that Jupyter writes for a notebook."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    # Half a surrogate pair (a program may print one) has no UTF-8 form; this turns it into its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def put_back(notebook: Notebook, blank: Notebook, exercise_id: str) -> Notebook:
    """Return a learner's notebook with one exercise as in the blank, every other cell as it is, outputs too.

    Raises LookupError if the blank has no such exercise. Neither argument is changed.
    """
    pristine: list[Cell] = blank["cells"]
    stubs, check = _exercise(pristine, exercise_id)
    cells: list[Cell] = [dict(cell) for cell in notebook["cells"]]
    for stub in stubs:
        _rename_if_repeated(cells, stub["id"])
    if check["id"] not in _ids(cells):
        for cell in (*stubs, check):
            if cell["id"] not in _ids(cells):
                cells.insert(_place(cells, pristine, cell), cell)
    cells[_ids(cells).index(check["id"])] = check
    for stub in stubs:
        _put_before(cells, stub, check)
    return {**notebook, "cells": cells}


def with_checks(notebook: Notebook, blank: Notebook) -> list[Cell]:
    """Return the cells of a learner's notebook with every check cell of the blank, each as it is there, and once.

    A check cell stands where the learner has it, but below the stubs that it checks. One that is gone, or that an
    older editor saved without its id, is found by what it says, or else stands above the next cell of the blank that
    is left, below whatever the learner put there; with none left it stands at the end.
    """
    cells: list[Cell] = list(notebook["cells"])
    for exercise_id in check_cells(blank).values():
        cells = _with_check(cells, blank["cells"], exercise_id)
    return cells


def text_of(cell: Cell) -> str:
    """Return the source of a cell as one text; a notebook may hold it as a list of lines."""
    source = cell.get("source")
    lines = source if isinstance(source, list) else [source]
    return "".join(line for line in lines if isinstance(line, str))


def _with_check(cells: list[Cell], pristine: list[Cell], exercise_id: str) -> list[Cell]:
    stubs, check = _exercise(pristine, exercise_id)
    old = [index for index, cell in enumerate(cells) if cell.get("id") == check["id"]]
    if not old:
        old = [index for index, cell in enumerate(cells) if text_of(cell).strip() == text_of(check).strip()]
    last_stub = max(
        (_ids(cells).index(stub["id"]) for stub in stubs if stub["id"] in _ids(cells)), default=-1
    )
    place = max(old[-1] if old else _above_next(cells, pristine, check), last_stub + 1)
    above = [cell for index, cell in enumerate(cells) if index < place and index not in old]
    below = [cell for index, cell in enumerate(cells) if index >= place and index not in old]
    return [*above, check, *below]


def _above_next(cells: list[Cell], pristine: list[Cell], missing: Cell) -> int:
    """Return the place above the nearest cell after `missing` in the blank that is left."""
    for after in pristine[pristine.index(missing) + 1 :]:
        if after["id"] in _ids(cells):
            return _ids(cells).index(after["id"])
    return len(cells)


def _exercise(pristine: list[Cell], exercise_id: str) -> tuple[list[Cell], Cell]:
    """Find an exercise in a blank: its stubs, and its check cell."""
    stubs = [cell for cell in pristine if is_stub_cell_id(cell["id"], exercise_id)]
    for cell in pristine:
        if cell["id"] == check_cell_id(exercise_id):
            return stubs, cell
    raise LookupError(f"no cell {check_cell_id(exercise_id)!r}")


def _rename_if_repeated(cells: list[Cell], cell_id: str) -> None:
    """Give cells that share an id new ones: which of them is the exercise's would be a guess, so none is."""
    found = [cell for cell in cells if cell.get("id") == cell_id]
    for cell in found if len(found) > 1 else ():
        cell["id"] = os.urandom(4).hex()


def _put_before(cells: list[Cell], stub: Cell, check: Cell) -> None:
    """Put a stub where it stands, or right before the check if it is missing or stands too late."""
    limit = _ids(cells).index(check["id"])
    if stub["id"] in _ids(cells[:limit]):
        cells[_ids(cells).index(stub["id"])] = stub
        return
    cells[:] = [*cells[:limit], stub, *(cell for cell in cells[limit:] if cell.get("id") != stub["id"])]


def _place(cells: list[Cell], pristine: list[Cell], missing: Cell) -> int:
    """Return where a missing cell belongs: after the nearest cell before it in the blank that is left."""
    for before in reversed(pristine[: pristine.index(missing)]):
        if before["id"] in _ids(cells):
            return _ids(cells).index(before["id"]) + 1
    return 0


def _ids(cells: list[Cell]) -> list[Any]:
    return [cell.get("id") for cell in cells]
