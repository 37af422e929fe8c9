"""Files of the learner's that hide a module from a page, such as `types.py` or `numpy.py` beside it.

A kernel looks for modules in the folder of its page first. So `import numpy` finds a `numpy.py` there; and a few names
keep the kernel from starting at all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

_OURS = __name__.partition(".")[0]


def hiding(folder: Path) -> list[str]:
    """Return the names of files and packages in `folder` that are found in place of a module of Python or installed."""
    elsewhere = [each for each in sys.path if os.path.realpath(each) != os.path.realpath(folder)]
    return [file for module, file in sorted(_modules(folder)) if _is_installed(module, elsewhere)]


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each module in a folder, and that of its file."""
    for path in folder.iterdir():
        if path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem, path.name
        elif path.name.isidentifier() and (path / "__init__.py").is_file():
            yield path.name, f"{path.name}/"


def _is_installed(module: str, path: list[str]) -> bool:
    if module == _OURS or module in sys.stdlib_module_names:
        return True
    found = PathFinder.find_spec(module, path)
    return found is not None and found.origin is not None  # a folder without code in it has none
