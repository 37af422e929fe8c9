"""One checkpoint: saved whole or not at all, and checked before anything of it is used."""

from __future__ import annotations

import errno
import os
import stat
from os import PathLike
from pathlib import Path
from typing import IO, Any

import torch

from amp_lab.train.saving import layout
from amp_lab.train.saving.errors import CheckpointError, Kind
from amp_lab.train.saving.files import write_whole
from amp_lab.train.saving.plain import plain


def save_checkpoint(path: str | PathLike[str], state: Any) -> Path:
    """Save a state under this name, whole or not at all; a file of this name is replaced once the new one is safe.

    Args:
        path: its folder is made if need be.
        state: usually a dict of state dicts: numbers, text, lists, tuples, dicts, and tensors of any dtype and device.
            Save when no gradient is pending: after scaler.update() and scheduler.step().

    Returns:
        The path.

    Raises:
        CheckpointError: "unsaved": the disk is full, the folder cannot be written, or the state holds something else.
            A file that had this name is as it was.
    """
    return write_checkpoint(Path(path), state, {})


def load_checkpoint(path: str | PathLike[str], *, map_location: str | torch.device = "cpu") -> Any:
    """Return the state that `save_checkpoint` was given, its tensors on the CPU or where `map_location` says.

    Nothing in the file is run. (Before PyTorch 2.10, a file that was made to could harm memory all the same,
    CVE-2026-24747: there, load only what comes from people you trust.)

    Raises:
        CheckpointError: the file is missing, unreadable, truncated, damaged, foreign, unsafe, or of a newer amp_lab.
    """
    path = Path(path)
    with _opened(path) as file:
        try:
            layout.check(file, str(path))
            file.seek(0)
            loaded = _loaded(file, path, map_location)
        except OSError as error:
            raise _unreadable(path, error) from error
    if not (isinstance(loaded, dict) and "state" in loaded):
        raise CheckpointError(f"{path}: foreign: no state is in it. Give another file", "foreign", path)
    return loaded["state"]


def _loaded(file: IO[bytes], path: Path, map_location: str | torch.device) -> Any:
    """Every byte is as it was written: what goes wrong here was so from the beginning, or is not to be had here."""
    try:
        return torch.load(file, map_location=map_location, weights_only=True)
    except (OSError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, MemoryError) as error:
        raise _not_loaded(path, map_location, error) from error
    except Exception as error:  # a pickle that was made to break its reader can raise anything
        raise _refused(path, error) from error


def write_checkpoint(path: Path, state: Any, about: dict[str, Any]) -> Path:
    """Save a state, with what its last line says about it."""
    values = plain(state)
    write_whole(path, lambda file: layout.write(file, values, about))
    return path


def header(path: Path) -> dict[str, Any]:
    """Return what the last line says; the rest is neither read nor checked."""
    with _opened(path) as file:
        return layout.read_line(file, str(path))


def _opened(path: Path) -> IO[bytes]:
    """Open an ordinary file; does not wait for a named pipe."""
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _unreadable(path, OSError(errno.EINVAL, "no ordinary file"))
    return file


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    kind: Kind = "unreadable"
    if path.is_dir():
        what = "this is a folder. Give a file in it, or use Checkpoints(folder).load()"
    elif isinstance(error, FileNotFoundError):
        kind, what = "missing", f"there is no such file{_neighbours(path)}"
    elif isinstance(error, PermissionError):
        what = "you may not read it. Make it readable for you (chmod u+r), and its folders (chmod u+rx)"
    else:
        what = f"{error.strerror or error}. Look whether the disk is in order, or give another file"
    return CheckpointError(f"{path}: {kind}: {what}", kind, path)


def _not_loaded(path: Path, where: object, error: Exception) -> CheckpointError:
    """The device is not here or has no memory, or a part of the file is smaller than the tensor in it."""
    said = str(error).partition("\n")[0] or type(error).__name__
    return CheckpointError(
        f"{path}: unreadable: PyTorch {torch.__version__} cannot load it onto {where!r}: {said} Load it with "
        "map_location='cpu', or with the PyTorch that saved it",
        "unreadable",
        path,
    )


def _refused(path: Path, error: Exception) -> CheckpointError:
    """PyTorch's own message advises weights_only=False; what it found stands in the exception that it came from."""
    found = error.__context__ or error
    return CheckpointError(
        f"{path}: unsafe: PyTorch {torch.__version__} refuses what is in it: {type(found).__name__} "
        f"{str(found).strip().partition(chr(10))[0]} None of its code has run. save_checkpoint writes no such file, "
        "but of dtypes that only a newer PyTorch knows: do not use it, or load it with the PyTorch that saved it",
        "unsafe",
        path,
    )


def _neighbours(path: Path) -> str:
    """Say what there is instead: a wrong name is the usual reason."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either. Check the path"
    others = sorted(other.name for other in path.parent.glob("*.pt"))
    return f". Its folder holds {', '.join(others[-5:])}" if others else ". Check the path"
