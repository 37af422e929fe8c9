"""The storages of tensors, wherever these are.

A *storage* is what memory is given to. Tensors are views of one: `x.t()`, `x[0]` and `x` share theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

_DEEP: Final = 8  # data classes in data classes: one may hold itself


def storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages, not empty, of all tensors in a value (see `tensors_of`); one may come more than once."""
    for tensor in tensors_of(value):
        for part in _dense(tensor):
            storage = part.untyped_storage()
            if storage.nbytes() and part.device.type != "meta":
                yield storage


def tensors_of(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples, mappings and data classes, nested as they may be."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth < _DEEP:
            # PyTorch's tree_leaves does not look into these, such as a Hugging Face batch.
            if isinstance(leaf, Mapping):
                yield from tensors_of(list(leaf.values()), depth + 1)
            elif is_dataclass(leaf) and not isinstance(leaf, type):
                parts = [getattr(leaf, each.name, None) for each in fields(leaf)]
                yield from tensors_of(parts, depth + 1)


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if is_traceable_wrapper_subclass(tensor):  # such as a nested tensor, or a weight in 8 bits
        parts, _ = tensor.__tensor_flatten__()
        return tuple(each for part in parts for each in _dense(getattr(tensor, part)))
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()  # such as oneDNN's own, which have no storage that Python sees


def sizes(value: Any) -> dict[int, int]:
    """Return the size in bytes of each storage in `value` by its address: each once."""
    return {each.data_ptr(): each.nbytes() for each in storages(value)}
