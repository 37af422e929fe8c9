"""A course of two lessons, in the catalog and on the disk."""

from amp_lab.course import catalog
from amp_lab.course.pages import cells

PAGE = "00_start_here.ipynb"
SOURCE = '''# %%
def double(x):
    """Double it."""
    ### BEGIN SOLUTION
    return x * 2
    ### END SOLUTION


# %%
check("0.1", double)
'''


def exercise(name):
    return catalog.Exercise(
        id=name,
        title=f"Title of {name}",
        minutes=1,
        function="double",
        hints=("the idea × 2", "which call", "nearly:\n    return x" + " * 1" * 40),
        diagnoses={},
        why="because " * 40 + "of this",
    )


def lesson(slug, *exercises):
    return catalog.Lesson(slug, f"Title of {slug}", 1, "easy", "nothing", exercises)


def notebook(name):
    return {
        "cells": [
            {
                "id": f"stub-{name}-1",
                "cell_type": "code",
                "source": "raise NotImplementedError",
                "outputs": [],
            },
            {"id": f"check-{name}", "cell_type": "code", "source": "check", "outputs": []},
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def start_here(root, monkeypatch):
    """Make it in the folder `root`, and have it taken for the course."""
    lessons = (lesson("00_start_here", exercise("0.1"), exercise("0.2")), lesson("03_loops", exercise("3.1")))
    monkeypatch.setattr(catalog, "lessons", lambda: lessons)
    monkeypatch.setenv("AMP_LAB_COURSE", str(root))
    (root / "pyproject.toml").touch()
    (root / "solutions").mkdir()
    (root / "notebooks").mkdir()
    (root / "solutions" / "00_start_here.py").write_text(SOURCE)
    (root / "notebooks" / PAGE).write_bytes(cells.dump(notebook("0-1")))
    (root / "notebooks" / "03_loops.ipynb").write_bytes(cells.dump(notebook("3-1")))
    return root
