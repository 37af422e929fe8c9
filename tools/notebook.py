"""Make a lesson's two notebooks from the text of its source: the learner's, and the one to execute."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from amp_lab.course.pages import source
from amp_lab.course.pages.source import Cell

Notebook = dict[str, Any]


def blank_notebook(text: str, path: str | Path) -> Notebook:
    """Return the learner's notebook of a lesson: stubs in place of solutions, no outputs, no counts."""
    return _notebook(source.cells(source.blank(text, path)), _cell_ids(text, path), {})


def solved_notebook(text: str, path: str | Path, digest: str) -> Notebook:
    """Return the notebook of a lesson with its solutions, not yet executed. Cells have the blank's ids."""
    solved = source.cells(source.solved(text, path))
    return _notebook(solved, _cell_ids(text, path), {"amp_lab": {"digest": digest}})


def dump(notebook: Notebook) -> bytes:
    """Return a notebook's file, written as nbformat writes it."""
    return (json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _cell_ids(text: str, path: str | Path) -> list[str]:
    """Name the cells of an exercise after it and every other cell after what it says: ids outlive a rebuild."""
    lesson = source.read(text, path)
    named = {index: source.check_cell_id(exercise_id) for index, exercise_id in lesson.checks.items()}
    for exercise_id, answer in lesson.answers.items():
        indices = [index for index, cell in enumerate(lesson.cells) if cell in answer]
        named |= zip(indices, source.stub_cell_ids(exercise_id, len(answer)), strict=True)
    seen: Counter[str] = Counter()
    ids = []
    for index, cell in enumerate(source.cells(source.blank(text, path))):
        if index in named:
            ids.append(named[index])
            continue
        content = source.content_digest(cell.kind, cell.source)
        seen[content] += 1
        ids.append(f"{content}-{seen[content]}")
    return ids


def _notebook(cells: Iterable[Cell], ids: Iterable[str], metadata: Mapping[str, Any]) -> Notebook:
    return {
        "cells": [_cell(cell, cell_id) for cell, cell_id in zip(cells, ids, strict=True)],
        "metadata": {
            **metadata,
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(cell: Cell, cell_id: str) -> dict[str, Any]:
    metadata = {"tags": list(cell.tags), "reason": cell.reason} if cell.tags else {}
    common = {"cell_type": cell.kind, "id": cell_id, "metadata": metadata}
    text = cell.source.splitlines(keepends=True)
    if cell.kind == "markdown":
        return {**common, "source": text}
    return {**common, "execution_count": None, "outputs": [], "source": text}
