"""Tensors in what a call was given or has returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import torch

Shape = tuple[torch.dtype, tuple[int, ...]]

_MOST: Final = 16
_DEEP: Final = 4
_WITHOUT: Final = frozenset({str, int, float, bool, type(None)})


def tensors_in(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples, mappings, and data classes, nested as they may be."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEP:
        for each in _elements(value):
            if isinstance(each, torch.Tensor):
                yield each
            else:
                yield from tensors_in(each, depth + 1)


def _elements(value: Any) -> Any:
    kind = type(value)
    if kind is tuple or kind is list:
        return value
    if kind is dict:
        return value.values()
    if kind in _WITHOUT:
        return ()
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if dataclasses.is_dataclass(value):
        return vars(value).values() if hasattr(value, "__dict__") else ()
    return ()


def shapes(*values: object) -> tuple[Shape, ...]:
    """Return dtype and shape of the first tensors in some values."""
    return tuple([(each.dtype, tuple(each.shape)) for each in islice(tensors_in(values), _MOST)])
