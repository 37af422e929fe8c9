"""How a checkpoint says that it cannot be written, or not be read."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Literal

Kind = Literal[
    "missing",  # there is no such file
    "unreadable",  # the system does not let us read it
    "truncated",  # it ends too early
    "damaged",  # its bytes are not those that were written
    "foreign",  # something else wrote it
    "newer",  # a later amp_lab wrote it
    "unsafe",  # it asks for what no checkpoint needs
    "unsaved",  # it could not be written; what was there before is still there
    "occupied",  # the folder holds another run's checkpoints
    "mismatch",  # it belongs to another model, or to other data
]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message names the file and says what to do.

    `kind` says in one word what is wrong, and `path` where, None if no file is to blame.
    """

    def __init__(self, message: str, kind: Kind, path: str | PathLike[str] | None = None):
        super().__init__(message)
        self.kind = kind
        self.path = None if path is None else fspath(path)
