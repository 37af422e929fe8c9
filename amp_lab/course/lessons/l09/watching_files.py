"""What somebody's code does with files while a run is saved: what would be left if the process died at that moment.

`Watched` stands in for PyTorch's `save` and for the functions of `os` that bring a file to the disk or move it. At each
of them, before and after, it looks at the file that must be whole at every moment. It can also make one of them fail.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

_MOVES = ("replace", "rename", "link")
_REMOVES = ("remove", "unlink")
_SYNCS = ("fsync", "fdatasync")


class Moment(NamedTuple):
    """One call that was seen: its name, and what `path` held before and after. None: there was no such file."""

    name: str
    before: bytes | None
    after: bytes | None


class Moved(NamedTuple):
    """A file took the name. `synced`: all its bytes were brought to the disk before."""

    source: Path
    synced: bool


class Watched:
    """Looks at `path` while code runs in `with watched:`; `fails`: at which call an error comes, halfway through.

    `half`: how many bytes of a file PyTorch's `save` writes before it fails.
    """

    def __init__(self, path: Path, fails: Literal["", "save", "fsync", "replace"] = "") -> None:
        self.path, self.fails = path, fails
        self.moments: list[Moment] = []
        self.moved: list[Moved] = []
        self.failed = False
        self._synced: dict[tuple[int, int], int] = {}  # device and inode -> bytes that were there
        self._inside = False
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Watched:
        for owner, name in self._seen():
            self._patch(owner, name)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    @staticmethod
    def _seen() -> Iterator[tuple[Any, str]]:
        yield torch, "save"
        yield torch.serialization, "save"
        for name in (*_MOVES, *_REMOVES, *_SYNCS):
            if hasattr(os, name):
                yield os, name
        for name in ("copy", "copy2", "copyfile"):
            yield shutil, name

    def _patch(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # PyTorch's and Python's own calls, of what is seen already
                return real(*args, **kwargs)
            self._inside = True
            before = self._content()
            try:
                return self._call(name, real, args, kwargs)
            finally:
                self._inside = False
                self.moments.append(Moment(name, before, self._content()))

        setattr(owner, name, call)
        self._patches.callback(setattr, owner, name, real)

    def _call(
        self, name: str, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name == self.fails or (self.fails == "replace" and name in _MOVES):
            self.failed = True
            if name == "save":
                _write_half(real, args, kwargs)
            raise OSError(28, "No space left on device")
        if name in _SYNCS:
            number = args[0] if isinstance(args[0], int) else args[0].fileno()
            found = os.fstat(number)
            self._synced[found.st_dev, found.st_ino] = found.st_size
        if name in _MOVES and Path(os.fsdecode(args[1])).absolute() == self.path.absolute():
            source = Path(os.fsdecode(args[0])).absolute()
            found = os.stat(source)
            self.moved.append(Moved(source, self._synced.get((found.st_dev, found.st_ino)) == found.st_size))
        return real(*args, **kwargs)

    def _content(self) -> bytes | None:
        return self.path.read_bytes() if self.path.is_file() else None


def _write_half(save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Do what `torch.save` does until the disk is full: half of the bytes are written."""
    given = dict(zip(("obj", "f"), args, strict=False)) | kwargs
    whole = io.BytesIO()
    save(given["obj"], whole)
    half = whole.getvalue()[: len(whole.getvalue()) // 2]
    target = given["f"]
    if isinstance(target, (str, os.PathLike)):
        Path(target).write_bytes(half)
    else:
        target.write(half)
        target.flush()
