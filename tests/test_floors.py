"""A module of amp_lab imports only from the floors below its own, and from its own room.

Read from the source, so that imports inside functions count, too. What is imported by a computed name (the
`text.py` of a lesson, the exports of `amp_lab`) cannot be seen here.
"""

import ast
from collections.abc import Iterator
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
FOREIGN = {"tools", "tests", "jupytext", "nbclient"}


def faults(package: Path) -> list[str]:
    """Return one line per import that is not allowed, `path:line: what`, in a package folder `amp_lab`."""
    modules = sorted(package.rglob("*.py"))
    assert modules, f"no modules in {package}"
    return [fault for module in modules for fault in _faults_of(module, package)]


def _faults_of(module: Path, package: Path) -> Iterator[str]:
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
        ("train__loop", "if False:\n    import amp_lab.course.catalog as c"),
        ("course__lessons__l00__checks", "from amp_lab.cli import main"),
        ("course__lessons__l00__checks", "from ....cli import main"),
        ("course__catalog", "import tools.build"),
        ("course__catalog", "from tests import x"),
        ("cli", "import jupytext"),
        ("cli", "def late():\n    from nbclient import NotebookClient"),
        ("attic", "import os"),
        ("attic__old", "import os"),
    ],
)
def test_the_test_sees_a_bad_import(tmp_path, room, source):
    (fault,) = faults(tree(tmp_path, **{room: source}))
    last = source.count("\n") + 1
    assert fault.startswith(f"{room.replace('__', '/')}.py:{last if room[:5] != 'attic' else 1}: ")


def test_the_test_lets_good_imports_pass(tmp_path):
    package = tree(
        tmp_path,
        formats="import torch",
        view__plots="import numpy\nfrom . import widgets\nfrom amp_lab.view.widgets import x",
        view__widgets="import ipywidgets",
        autocast__policy="from amp_lab.formats import x",
        watching__rules="from amp_lab.autocast import policy\nfrom .recorder import x",
        train__loop="import amp_lab.scaling, amp_lab.watching.rules",
        course__lessons__l00__checks="from amp_lab.course import expect\nfrom amp_lab.view import plots",
        cli="from amp_lab import __version__\nfrom amp_lab.course import catalog",
        main="from amp_lab.cli import main",
    )
    (package / "__init__.py").write_text("from amp_lab.train import loop")
    assert len(list(package.rglob("*.py"))) == 10
    assert faults(package) == []


def test_no_modules_is_a_failure(tmp_path):
    with pytest.raises(AssertionError, match="no modules"):
        faults(tmp_path)
