"""A module of amp_lab imports only from the floors below its own, and from its own room; so it is inside `course` and
`train`.

Read from the source, so that imports inside functions count, too. What is imported by a computed name (the
`text.py` of a lesson, the exports of `amp_lab`) cannot be seen here.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "amp_lab"

# From the ground up. Rooms of one floor do not import each other.
FLOORS = (
    ("formats", "scaling", "device", "view"),
    ("autocast",),
    ("watching",),
    ("train",),
    ("course",),
    ("cli", "__main__"),
)
HEIGHTS = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
# `python -m amp_lab` is the command line under another name.
SAME_ROOM = {("__main__", "cli")}
# The same within amp_lab/course.
COURSE_FLOORS = (
    ("catalog",),
    ("pages",),
    ("learner",),
    ("judging",),
    ("machine", "quizzes"),
    ("checking",),
)
COURSE_HEIGHTS = {room: height for height, rooms in enumerate(COURSE_FLOORS) for room in rooms}
# And within amp_lab/train; `training` names the Trainer, but for type checkers only.
TRAIN_FLOORS = (
    ("arguments", "metrics", "precision"),
    ("data", "saving", "measuring", "distributed", "simulating"),
    ("transformer", "checkpoint", "measure", "ddp_simulator"),
    ("models", "training"),
    ("trainer",),
    ("ddp",),
)
TRAIN_HEIGHTS = {room: height for height, rooms in enumerate(TRAIN_FLOORS) for room in rooms}
# What a lesson's modules are written with: its words, its quiz, and all others, which are its checks.
WORDS, QUIZ, CHECKS = ("catalog.",), ("quizzes.questions.",), ("catalog.", "judging.")
# Who looks into the folder of lessons for those that there are.
LISTS_LESSONS = {"catalog", "quizzes"}
FOREIGN = {"tools", "tests", "jupytext", "nbclient"}


def faults(package: Path) -> list[str]:
    """Return one line per import that is not allowed, `path:line: what`, in a package folder `amp_lab`."""
    modules = sorted(package.rglob("*.py"))
    assert modules, f"no modules in {package}"
    return [
        fault
        for module in modules
        for look in (_between_floors, _in_course, _in_train)
        for fault in look(module, package)
    ]


def _between_floors(module: Path, package: Path) -> Iterator[str]:
    where = module.relative_to(package)
    room = where.parts[0].removesuffix(".py")
    if room != "__init__" and room not in HEIGHTS:
        yield f"{where}:1: {room} is on no floor"
        return
    for line, target in _imports(module, package):
        top, _, rest = target.partition(".")
        if top in FOREIGN:
            yield f"{where}:{line}: imports {top}"
        # What amp_lab/__init__ imports, it does for others when they ask for it.
        if top == "amp_lab" and room != "__init__" and not _allowed(room, rest.partition(".")[0]):
            yield f"{where}:{line}: {room} imports {target}"


def _allowed(room: str, other: str) -> bool:
    if other == "__version__" or other == room or (room, other) in SAME_ROOM:
        return True
    return other in HEIGHTS and HEIGHTS[other] < HEIGHTS[room]


def _in_course(module: Path, package: Path) -> Iterator[str]:
    where = module.relative_to(package)
    top, *inside = where.parts
    # What course/__init__ imports, it does for a page that asks for it.
    if top != "course" or inside == ["__init__.py"]:
        return
    room = inside[0].removesuffix(".py")
    if room != "lessons" and room not in COURSE_HEIGHTS:
        yield f"{where}:1: {room} is no room of the course"
        return
    for line, target in _imports(module, package):
        course, _, other = f"{target}.".partition("amp_lab.course.")
        if not course and not _allowed_in_course(room, inside[1:], other):
            yield f"{where}:{line}: {room} imports {target}"


def _allowed_in_course(room: str, rest: Sequence[str], other: str) -> bool:
    """`other` is the full name of what is imported, without `amp_lab.course.` and with a dot at its end."""
    if other == "lessons.":
        return room in LISTS_LESSONS
    if room == "lessons":
        own = f"lessons.{rest[0]}."
        return other.startswith({"text.py": WORDS, "quiz.py": QUIZ}.get(rest[-1], (*CHECKS, own)))
    name = other.partition(".")[0]
    return name == room or COURSE_HEIGHTS.get(name, 99) < COURSE_HEIGHTS[room]


def _in_train(module: Path, package: Path) -> Iterator[str]:
    where = module.relative_to(package)
    top, *inside = where.parts
    if top != "train" or inside == ["__init__.py"]:
        return
    room = inside[0].removesuffix(".py")
    if room not in TRAIN_HEIGHTS:
        yield f"{where}:1: {room} is no room of train"
        return
    typed = _for_types(module)
    for line, target in _imports(module, package):
        train, _, other = target.partition("amp_lab.train.")
        name = other.partition(".")[0]
        below = name == room or TRAIN_HEIGHTS.get(name, 99) < TRAIN_HEIGHTS[room]
        if not train and other and not below and line not in typed:
            yield f"{where}:{line}: {room} imports {target}"


def _for_types(module: Path) -> set[int]:
    """Return the lines that only a type checker reads."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    return {
        line
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for line in range(block.lineno, (block.end_lineno or block.lineno) + 1)
    }


def _imports(module: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield each import of a module: line and full name; `from a import b` is an import of `a.b`."""
    inside = ("amp_lab", *module.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = inside[: len(inside) - node.level + 1] if node.level else ()
            source = ".".join((*start, *filter(None, [node.module])))
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def test_every_module_imports_from_below():
    assert faults(PACKAGE) == []


def tree(folder, **modules):
    """Write a small package; `view__plots="…"` becomes view/plots.py."""
    for name, source in modules.items():
        path = folder / "amp_lab" / (name.replace("__", "/").strip("/") + ".py")
        path = path if name != "main" else path.with_name("__main__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder / "amp_lab"


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("formats", "import amp_lab.scaling"),
        ("formats", "from amp_lab import scaling"),
        ("formats", "from . import scaling"),
        ("formats", "from .scaling import x"),
        ("formats", "from amp_lab import describe_device"),
        ("formats", "import amp_lab"),
        ("view__plots", "from amp_lab.formats import x"),
        ("view__plots", "from ..formats import x"),
        ("view__plots", "from ..train.loop import x"),
        ("autocast__policy", "import os, amp_lab.watching.rules"),
        ("watching__rules", "def late():\n    from amp_lab.train import loop"),
        ("train__data", "if False:\n    import amp_lab.course.catalog as c"),
        ("train__data", "from amp_lab.train.models import denoiser"),
        ("train__saving__one", "from amp_lab.train.measuring import timing"),
        ("train__training__loop", "from amp_lab.train.trainer import Trainer"),
        ("train__attic", "import os"),
        ("course__pages__cells", "from amp_lab.course import catalog, exercise"),
        ("course__pages__cells", "from amp_lab.course import check"),
        ("course__pages__cells", "import amp_lab.course"),
        ("course__pages__cells", "from amp_lab.course.learner import workspace"),
        ("course__pages__cells", "from ..learner.workspace import x"),
        ("course__learner__progress", "def late():\n    from amp_lab.course.judging import exercise"),
        ("course__judging__exercise", "from amp_lab.course.checking.evidence import x"),
        ("course__judging__exercise", "from amp_lab.course import lessons"),
        ("course__quizzes__panel", "from amp_lab.course.machine import server"),
        ("course__catalog", "from amp_lab.course.quizzes import questions"),
        ("course__lessons__l00__text", "from amp_lab.course.judging.expect import Mistake"),
        ("course__lessons__l00__quiz", "from amp_lab.course.quizzes import answering"),
        ("course__lessons__l00__checks", "from amp_lab.course.lessons.l01 import checks"),
        ("course__lessons__l00__text", "from amp_lab.course.lessons.l00 import checks"),
        ("course__lessons__l00__bits", "from amp_lab.course.learner import workspace"),
        ("course__lessons__l00__checks", "from amp_lab.cli import main"),
        ("course__lessons__l00__checks", "from ....cli import main"),
        ("course__catalog", "import tools.build"),
        ("course__catalog", "from tests import x"),
        ("cli", "import jupytext"),
        ("cli", "def late():\n    from nbclient import NotebookClient"),
        ("attic", "import os"),
        ("attic__old", "import os"),
        ("course__attic", "import os"),
        ("course__attic__old", "import os"),
    ],
)
def test_the_test_sees_a_bad_import(tmp_path, room, source):
    (fault,) = faults(tree(tmp_path, **{room: source}))
    last = source.count("\n") + 1
    assert fault.startswith(f"{room.replace('__', '/')}.py:{last if 'attic' not in room else 1}: ")


def test_the_test_lets_good_imports_pass(tmp_path):
    package = tree(
        tmp_path,
        formats="import torch",
        view__plots="import numpy\nfrom . import widgets\nfrom amp_lab.view.widgets import x",
        view__widgets="import ipywidgets",
        autocast__policy="from amp_lab.formats import x",
        watching__rules="from amp_lab.autocast import policy\nfrom .recorder import x",
        train__data="import amp_lab.scaling, amp_lab.watching.rules",
        train__training__loop="if TYPE_CHECKING:\n    from amp_lab.train.trainer import Trainer\n"
        "from amp_lab.train.saving import one\nfrom amp_lab.train.training import steps",
        course__lessons__l00__text="from amp_lab.course.catalog import Lesson",
        course__lessons__l00__quiz="from amp_lab.course.quizzes.questions import Question",
        course__lessons__l00__checks="from amp_lab.course.judging import expect\nfrom amp_lab.view import plots\n"
        "from amp_lab.course.lessons.l00 import bits",
        course__lessons__l00__bits="from amp_lab.course.judging.ask import Ask",
        course__catalog="from amp_lab.course import lessons",
        course__quizzes__questions="from amp_lab.course import catalog, lessons",
        course__judging__exercise="from . import guard\nfrom amp_lab.course.learner import progress",
        course__checking__lessons="from amp_lab.course.machine import server\nfrom ..pages.cells import x",
        cli="from amp_lab import __version__\nfrom amp_lab.course import catalog",
        main="from amp_lab.cli import main",
    )
    (package / "__init__.py").write_text("from amp_lab.train import data")
    assert len(list(package.rglob("*.py"))) == 18
    assert faults(package) == []


def test_no_modules_is_a_failure(tmp_path):
    with pytest.raises(AssertionError, match="no modules"):
        faults(tmp_path)
