"""A rehearsal before a checkpoint is loaded: what would its pickle call, and how much memory would it ask for?

`weights_only=True` runs no foreign code. But it believes what a file says about sizes, and unpacks compressed data of
any length. Here the same pickle is read with a stand-in for everything that it names, so nothing is called, and each
size it states is compared with the bytes that are there.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections import Counter, OrderedDict
from typing import IO, Any, Final, NamedTuple

import torch

from amp_lab.train.saving.errors import CheckpointError

_STORAGES: Final = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
    "UntypedStorage": torch.uint8,
}


def rehearse(file: IO[bytes], path: str) -> None:
    """Raise an error for a file that would do more than make plain values and tensors as large as their bytes.

    Raises:
        CheckpointError: "unsafe".
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records = {record.filename: record for record in archive.infolist()}
            _check_sizes(list(records.values()), file.seek(0, io.SEEK_END))
            name = next(name for name in records if name.endswith("/data.pkl"))
            data = archive.read(name)
            _check_opcodes(data)
            _Rehearsal(data, name.removesuffix("data.pkl"), records).load()
    except Exception as error:  # a pickle that was made to break its reader can raise anything
        raise CheckpointError(
            f"{path}: unsafe: {_why(error)}. No such file is made by save_checkpoint. It was not loaded, and none of "
            "its code has run: do not use it",
            "unsafe",
            path,
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, _Unsafe):
        return str(error)
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    return f"its inside cannot be read ({type(error).__name__}: {error})"


class _Unsafe(Exception):
    """What the file would do, in words."""


def _check_sizes(records: list[zipfile.ZipInfo], size: int) -> None:
    """torch.save compresses nothing, so that no record is larger than it looks, nor all of them than the file."""
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise _Unsafe("it holds compressed data")
    if sum(record.file_size for record in records) > size:
        raise _Unsafe("its parts are said to be larger than the file")


def _check_opcodes(data: bytes) -> None:
    """Python's unpickler makes its memo as long as the largest number in it, and a bytearray as long as it is said."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.proto > 2:
            raise _Unsafe(f"its pickle holds {opcode.name}")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) >= len(data):
            raise _Unsafe(f"it asks for a memo of {argument:,} values")


class _Storage(NamedTuple):
    """Stands for the memory of a tensor, in bytes, and for its elements' type."""

    nbytes: int
    dtype: torch.dtype


class _Rehearsal(pickle.Unpickler):
    def __init__(self, data: bytes, folder: str, records: dict[str, zipfile.ZipInfo]) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._folder, self._records = folder, records

    def find_class(self, module: str, name: str) -> Any:
        """Return something that has the manners of what is named, and does nothing."""
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise _Unsafe(f"it would call {module}.{name}")

    def persistent_load(self, saved: Any) -> _Storage:
        """Compare the size of a storage with the record that holds its bytes."""
        _, dtype, key, _, numel = saved
        there = self._records[f"{self._folder}data/{key}"].file_size
        if not 0 <= numel * dtype.itemsize <= there:
            raise _Unsafe(f"a tensor of {numel:,} elements is said to stand in {there:,} bytes")
        return _Storage(numel * dtype.itemsize, dtype)


def _nothing(*_: Any) -> None:
    return None


def _tensor(storage: _Storage, offset: int, size: tuple[int, ...], *_: Any) -> None:
    _check_tensor(storage.nbytes, storage.dtype, offset, size)


def _tensor_of_new_dtype(storage: _Storage, offset: int, size: tuple[int, ...], *rest: Any) -> None:
    """For dtypes that came after the storages of old, such as FP8: their storage counts bytes."""
    _check_tensor(storage.nbytes, rest[3], offset, size)


def _check_tensor(nbytes: int, dtype: torch.dtype, offset: int, size: tuple[int, ...]) -> None:
    """An expanded tensor shows the same bytes again and again: small here, and endless once somebody copies it."""
    fits = (offset + math.prod(size)) * dtype.itemsize <= nbytes
    if not (fits and offset >= 0 and all(many >= 0 for many in size)):
        raise _Unsafe(f"a tensor of shape {tuple(size)} is said to stand in {nbytes:,} bytes")


# Called with what follows them in the file; none makes anything larger than what it is given.
_STAND_INS: Final = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): Counter,
    ("_codecs", "encode"): _nothing,  # makes bytes
    ("builtins", "complex"): _nothing,
    ("__builtin__", "complex"): _nothing,
    ("torch", "Size"): tuple,
    ("torch", "device"): _nothing,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_new_dtype,
}
