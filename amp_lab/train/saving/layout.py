"""What a checkpoint looks like on disk: what `torch.save` writes, and one line of text after it.

    PK…                                      the zip file of torch.save, {"AMP Lab checkpoint": 1, "state": …}
    AMP Lab checkpoint 1 {"bytes": 52310, "step": 40, …} CRC32 9ae0daaf

`torch.load` passes the line over, so the file opens without amp_lab, too. The line says which version of this layout it
is, what the folder's owner wants to know without reading all of it, and the sum of every byte before the sum itself:
PyTorch checks no sums when it reads.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import IO, Any, Final

import torch

from amp_lab.train.saving.errors import CheckpointError

VERSION: Final = 1
NAME: Final = "AMP Lab checkpoint"
_MARK: Final = f"\n{NAME} ".encode()
_LINE: Final = re.compile(rb"\n" + NAME.encode() + rb" (\d{1,9}) (\{.*\}) CRC32 ([0-9a-f]{8})\n", re.DOTALL)
# Who opens a zip file looks for its end in the last 64 KiB.
_LONGEST: Final = 60_000
_CHUNK: Final = 1 << 20


def write(file: IO[bytes], state: Any, about: dict[str, Any]) -> None:
    """Write a checkpoint into an empty file.

    Raises:
        OSError: from the file, such as that of a full disk.
    """
    summed = _Summed(file)
    torch.save({NAME: VERSION, "state": state}, summed)  # type: ignore[arg-type]
    summed.finish()
    line = _MARK + f"{VERSION} {json.dumps({'bytes': summed.bytes, **about})}".encode()
    if len(line) > _LONGEST:
        raise ValueError(f"values: {len(line):,} bytes of text; {_LONGEST:,} are the most")
    file.write(line + f" CRC32 {zlib.crc32(line, summed.crc):08x}\n".encode())


class _Summed:
    """The file that torch.save writes to; keeps the sum.

    An exception must not pass through PyTorch's C++ writer, which would try to finish the file and hide it: it waits.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.bytes = self.crc = 0
        self._file = file
        self._failed: BaseException | None = None

    def write(self, data: memoryview) -> int:
        if self._failed is None:
            try:
                self._file.write(data)
                self.crc = zlib.crc32(data, self.crc)
                self.bytes += len(data)
            except BaseException as failed:
                self._failed = failed
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def finish(self) -> None:
        if self._failed is not None:
            raise self._failed


def read_line(file: IO[bytes], path: str) -> dict[str, Any]:
    """Return what the last line says, without checking the sum.

    Raises:
        CheckpointError: if there is no such line, or a later version's.
    """
    version, about, _ = _last_line(file, path)
    return _understood(version, about, path)


def check(file: IO[bytes], path: str) -> dict[str, Any]:
    """Read the whole file, and return what its last line says if every byte is as it was written."""
    version, about, crc = _last_line(file, path)
    if _crc(file, _size(file) - len(b" CRC32 12345678\n")) != int(crc, 16):
        raise CheckpointError(
            f"{path}: damaged: the sum of its bytes (CRC32) is not what was written. "
            "Copy it again, or go back to an older checkpoint",
            "damaged",
            path,
        )
    # A later version keeps the sum, so that damage is not taken for progress.
    return _understood(version, about, path)


def _last_line(file: IO[bytes], path: str) -> tuple[int, bytes, bytes]:
    size = _size(file)
    file.seek(max(0, size - _LONGEST - 100))
    tail = file.read()
    start = tail.rfind(_MARK)
    found = _LINE.fullmatch(tail, start) if start >= 0 else None
    if found is None:
        raise _no_line(file, path, size)
    return int(found[1]), found[2], found[3]


def _understood(version: int, about: bytes, path: str) -> dict[str, Any]:
    if version > VERSION:
        raise CheckpointError(
            f"{path}: written by a newer amp_lab (layout {version}; this one reads up to {VERSION}). Update amp_lab",
            "newer",
            path,
        )
    try:
        said: dict[str, Any] = json.loads(about)
    except (ValueError, RecursionError):
        raise CheckpointError(
            f"{path}: damaged: its last line cannot be read. Go back to an older checkpoint", "damaged", path
        ) from None
    return said


def _no_line(file: IO[bytes], path: str, size: int) -> CheckpointError:
    """Say why there is no last line: ours begins with a zip file that has our name near its start."""
    file.seek(0)
    start = file.read(1024)
    if size == 0 or NAME.encode() in start:
        what = "empty" if size == 0 else f"cut off after {size:,} bytes"
        return CheckpointError(
            f"{path}: truncated: it is {what}. Copy it again, or go back to an older checkpoint",
            "truncated",
            path,
        )
    if start.startswith(b"PK"):
        what = "a file of plain torch.save, or the beginning of one; torch.load(path, weights_only=True) may read it"
    else:
        what = "not written by save_checkpoint"
    return CheckpointError(
        f"{path}: foreign: {what}. Give load_checkpoint a file that save_checkpoint wrote", "foreign", path
    )


def _size(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)


def _crc(file: IO[bytes], size: int) -> int:
    file.seek(0)
    crc, left = 0, size
    while left > 0 and (chunk := file.read(min(_CHUNK, left))):
        crc, left = zlib.crc32(chunk, crc), left - len(chunk)
    return crc
