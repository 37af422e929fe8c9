"""One process at a time saves in a folder: two that go on from the same checkpoint would each remove the other's."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from amp_lab.train.saving.errors import CheckpointError

_NAME = ".amp-lab-lock"


class FolderLock:
    """A lock on a folder. The system lets go of it when the process ends, however it ends.

    Not `flock`, which the workers of a loader inherit: they live on for seconds when their parent is killed, and it
    could not be started again so soon. This kind belongs to the process; so it does not keep two runs of one process
    apart, which `Checkpoints` does by what each has written. The file stays: to remove it would let a third one in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def __reduce__(self) -> tuple[type[FolderLock], tuple[Path]]:
        """A copy has not taken it."""
        return FolderLock, (self._folder,)

    def take(self) -> None:
        """Take the lock, unless it was taken before. A file system without locks (some of networks) grants all.

        Raises:
            CheckpointError: "occupied" by another process.
            OSError: the folder cannot be made or written.
        """
        if self._file is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self._folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.read(file, 200).decode(errors="replace").strip() or "another process"
            os.close(file)
            raise CheckpointError(
                f"{self._folder}: {owner} is training with the checkpoints in this folder. Wait for it or stop it, or "
                "give this run another folder",
                "occupied",
                self._folder,
            ) from None
        except OSError:
            pass
        self._file = file
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Let others in."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        """A run that nobody ended is over when nobody has it any more."""
        self.release()
