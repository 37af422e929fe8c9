"""One file written so that, whenever the machine stops, either the old one is there or the new one, whole.

A temporary file beside it is written, brought to the disk (fsync), and renamed, which the file system does at once or
not at all. The folder is brought to the disk too: it holds the name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from amp_lab.train.saving.errors import CheckpointError

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.amp-lab-tmp")
_ADVICE = {
    errno.ENOSPC: "free some space, or give another folder",
    errno.EDQUOT: "free some of your space, or give another folder",
    errno.EFBIG: "no file of this size is allowed here: give another folder, or raise the limit (ulimit -f)",
    errno.EACCES: "make the folder writable for you, or give another one",
    errno.EPERM: "make the folder writable for you, or give another one",
    errno.EROFS: "give a folder that can be written",
    errno.EISDIR: "a folder has the name of the file: give another name",
    errno.ENOTDIR: "a file has the name of a folder on this path: give another folder",
    errno.EEXIST: "a file has the name of the folder: give another one",
    errno.EINVAL: "give another name",
    errno.ENAMETOOLONG: "give a shorter name",
}


def write_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Let `write` fill a new file, and give it this name when all of it is on the disk.

    Raises:
        CheckpointError: "unsaved"; what had this name before is as it was, and nothing else is left behind.
    """
    with explained(path):
        if not path.name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "a device, a pipe or a socket has this name, and would be lost")
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, path.name)
        with _temporary(path) as (name, file):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(name, path)
        _sync_folder(path.parent)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of an error of the system that this was not saved, and what to do.

    Raises:
        CheckpointError: "unsaved", in its place.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: not saved: {error.strerror or error}. {_what_to_do(error)}. Older checkpoints are as they were",
            "unsaved",
            path,
        ) from error


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a new file beside this one, with its name; it is gone afterwards unless it was renamed.

    The lock says that somebody is writing; the system lets go of it when the process ends, however it ends.
    """
    name = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.amp-lab-tmp")
    with open(name, "xb") as file:
        try:
            _locked(file.fileno())
            yield name, file
        finally:
            with contextlib.suppress(OSError):  # renamed; or the disk is gone, and with it the file
                os.unlink(name)


def remove_leftovers(folder: Path, name: str | None = None) -> list[Path]:
    """Remove temporary files that killed runs have left (for this name only), and return them.

    Only files with a name as given here are touched, and only if nobody is writing them.
    """
    removed = []
    for found in sorted(folder.glob(".*.amp-lab-tmp")):
        ours = _LEFTOVER.fullmatch(found.name)
        if ours and name in (None, ours["name"]) and _remove_if_free(found):
            removed.append(found)
    return removed


def _remove_if_free(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            if not _locked(file.fileno()):
                return False
            path.unlink()
            return True
    except OSError:
        return False


def _locked(descriptor: int) -> bool:
    """Lock an open file if nobody else has, and say whether; a file system without locks leaves it to the names."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Some network file systems know no fsync of a folder; there the rename is as safe as they make it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _what_to_do(error: OSError) -> str:
    return _ADVICE.get(
        error.errno or 0, "Look whether the disk is in order, or give another folder"
    ).capitalize()
