"""A course of tiny lessons on the disk, for tests that run it in processes of their own.

Every exercise asks to double a number, and its check is a line long. `sitecustomize.py` puts the lessons in the place
of the course's own in every Python that has the course's `python/` on its PYTHONPATH.
"""

import copy
import os
from pathlib import Path

from amp_lab.course.pages import cells

RIGHT, WRONG = "return 2 * x", "return x"
_SITE = """\
from pathlib import Path

from amp_lab.course import lessons

lessons.__path__[:] = [str(Path(__file__).with_name("lessons"))]
"""
_TEXT = """\
from amp_lab.course.catalog import Exercise, Lesson

LESSON = Lesson(
    slug={slug!r}, title={title!r}, minutes=1, difficulty="easy", needs="nothing",
    exercises=tuple(
        Exercise(
            id=name, title="Title " + name, minutes=1, function="double_" + name.replace(".", "_"),
            hints=("idea", "call", "code"), diagnoses={{}}, why="Twice. A second sentence.",
        )
        for name in {names!r}
    ),
)
"""
_CHECKS = """\
from amp_lab.course.judging.exercise import NotHere, checker
from amp_lab.course.judging.expect import Mistake


def check_double(ask):
    got = ask(21)
    if got is NotHere:
        raise NotHere("It needs a GPU. There is none.")
    if got != 42:
        raise Mistake("wrong-value", call=ask.call, got=got, want=42)


for name in {names!r}:
    checker(name)(check_double)
"""


def code(source, cell_id, **metadata):
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": cell_id,
        "metadata": metadata,
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }


def function(exercise_id):
    return "double_" + exercise_id.replace(".", "_")


def stub(exercise_id, body="raise NotImplementedError"):
    return code(f"def {function(exercise_id)}(x):\n    {body}", f"stub-{exercise_id.replace('.', '-')}-1")


def check(exercise_id):
    return code(f'check("{exercise_id}", {function(exercise_id)})', f"check-{exercise_id.replace('.', '-')}")


class SmallCourse:
    """A checkout with blanks, and a workspace to put copies into."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self._python = root / "python"
        for folder in ("notebooks", "solutions", "work", "python/lessons"):
            (root / folder).mkdir(parents=True)
        (root / "pyproject.toml").touch()
        (self._python / "sitecustomize.py").write_text(_SITE)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that takes this for the course."""
        path = os.pathsep.join(filter(None, [str(self._python), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, "AMP_LAB_COURSE": str(self.root), "CI": ""}

    @property
    def lessons(self) -> str:
        """The folder to look for lessons in."""
        return str(self._python / "lessons")

    def add(self, slug: str, count: int) -> None:
        """Write a lesson of `count` exercises, and its blank."""
        names = tuple(f"{int(slug[:2])}.{number}" for number in range(1, count + 1))
        room = self._python / "lessons" / f"l{slug[:2]}"
        room.mkdir()
        (room / "__init__.py").touch()
        (room / "text.py").write_text(_TEXT.format(slug=slug, title=f"Lesson {slug[:2]}", names=names))
        (room / "checks.py").write_text(_CHECKS.format(names=names))
        page = [code("from amp_lab.course import check", "import-1")]
        page += [cell for name in names for cell in (stub(name), check(name))]
        (self.root / "notebooks" / f"{slug}.ipynb").write_bytes(cells.dump(notebook(page)))

    def page(self, slug: str, bodies: dict[str, str]) -> list[dict]:
        """Return the cells of a copy with these bodies in its functions."""
        blank = cells.parse((self.root / "notebooks" / f"{slug}.ipynb").read_bytes())
        filled = {each["id"]: each for each in (stub(name, body) for name, body in bodies.items())}
        return [filled.get(cell["id"], cell) for cell in copy.deepcopy(blank["cells"])]

    def save(self, slug: str, page: list[dict]) -> Path:
        """Write a copy, as JupyterLab does."""
        path = self.work / f"{slug}.ipynb"
        path.write_bytes(cells.dump(notebook(page)))
        return path


def notebook(page):
    return {"cells": page, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
