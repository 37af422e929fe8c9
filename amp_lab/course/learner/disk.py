"""Reading files that may be anything by now, and what helps against what the system refuses."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

_FULL = "free some space and try again"
_LOCKED = "make the folder writable, or move the checkout to one that is"
_IN_THE_WAY = "a file has the name of a folder on this path: rename the file"
_NO_FILE = "this is no ordinary file: rename or remove it"
_ADVICE = {
    errno.EINVAL: _NO_FILE,
    errno.ENXIO: _NO_FILE,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _LOCKED,
    errno.EPERM: _LOCKED,
    errno.EROFS: _LOCKED,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: "a folder has the name of a file: rename the folder",
}


def read(path: Path) -> bytes:
    """Return what an ordinary file holds; raises OSError for anything else, and does not wait for a named pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(kind):
            number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
            raise OSError(number, "not an ordinary file", str(path))
        return file.read()


class Refused(NamedTuple):
    """What the system refused, and what to do about it; "" if nobody knows."""

    said: str
    advice: str

    def __str__(self) -> str:
        return "; ".join(filter(None, self))


def in_words(error: OSError) -> Refused:
    """Say in one line what the system refused, and where."""
    where = f"{error.filename}: " if error.filename else ""
    return Refused(f"{where}{error.strerror or error}", _advice(error))


def _advice(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM) and isinstance(error.filename, str | os.PathLike):
        path = Path(error.filename)
        for folder in reversed((path, *path.parents)):
            if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
                return f"make this folder readable and writable for you (chmod u+rwx {folder})"
        # With two names (a link, a renaming) it is the folder that refuses.
        if os.path.isfile(path) and not error.filename2:
            return f"make this file readable and writable for you (chmod u+rw {path})"
    return _ADVICE.get(error.errno or 0, "")
