"""Which lines of code are the user's own: in tracebacks, and in a model that runs."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

import torch

from amp_lab.autocast.records import Source

_NOT_THEIRS: Final = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[2]),
    sysconfig.get_path("stdlib"),
)
_PART_OF_TORCH: Final = (
    "torch",
    "amp_lab",
    "typing_extensions",
)  # the last gives its warnings about old names
# What a lesson gives its reader to work on is theirs.
_GIVEN: Final = re.compile(r"[/\\]amp_lab[/\\]course[/\\]lessons[/\\]\w+[/\\]given\.py$")
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<package>\w+)")
# The name of a file that is none; Python's library on another machine, from which somebody has copied a traceback;
# what torch.compile has written.
_NO_FILE: Final = re.compile(
    r"<frozen |<eval_with_key>|.*[/\\]lib[/\\]python3\.\d+[/\\]|.*[/\\]torchinductor_[^/\\]*[/\\]"
)


def frames(trace: TracebackType | None) -> list[Source]:
    """Return the lines that an exception has passed, outermost first."""
    return [
        Source(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in traceback.extract_tb(trace)
    ]


def source(file: str, line: int) -> Source:
    """Return a line of a file, such as the one that a warning names."""
    return Source(file, line, "", linecache.getline(file, line).strip())


def innermost(passed: Iterable[Source], *, installed: bool = True) -> Source | None:
    """Return the last line that is neither PyTorch's, nor amp_lab's, nor of Python's library.

    Args:
        passed: lines, outermost first.
        installed: whether lines of other installed packages count.
    """
    for frame in reversed(list(passed)):
        if is_users(frame.file) and (installed or not is_installed(frame.file)):
            return Source(readable(frame.file), frame.line, frame.function, frame.text)
    return None


def is_users(file: str) -> bool:
    """Return whether a file is neither PyTorch's, nor amp_lab's, nor of Python's library."""
    if _GIVEN.search(file):
        return True
    if installed := _INSTALLED.search(file):
        return installed["package"] not in _PART_OF_TORCH
    return not _NO_FILE.match(file) and not any(Path(file).is_relative_to(each) for each in _NOT_THEIRS)


def is_amp_labs(file: str) -> bool:
    """Return whether a file is of amp_lab itself."""
    if installed := _INSTALLED.search(file):
        return installed["package"] == "amp_lab"
    return Path(file).is_relative_to(Path(__file__).parents[2]) and not _GIVEN.search(file)


def is_installed(file: str) -> bool:
    """Return whether a file came with an installed package."""
    return _INSTALLED.search(file) is not None


def readable(file: str) -> str:
    """Return a file's name as a reader knows it: a notebook's cell by its number, a path from the working folder."""
    cell = cell_name(file)
    if cell is not None:
        return cell
    if re.search(r"[/\\]ipykernel_\d+[/\\]", file):  # of a kernel that is not this process
        return "a notebook's cell"
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def cell_name(file: str) -> str | None:
    """Return "Cell In[5]" for the file that this notebook's kernel pretends to run, as IPython's own tracebacks do."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    named = shell.compile.format_code_name(file) if shell else None
    return None if named is None else " ".join(named)
