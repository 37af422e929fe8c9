"""How many bytes an operator moves: what it reads and what it writes, each tensor once.

An estimate. It takes every operator as a kernel of its own that reads its inputs from memory and writes its outputs
there. Caches, fused kernels and workspaces make it more or less; that a kernel reads a matrix twice is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from amp_lab.train.measuring.storages import storages

# These give memory a number without looking at what was there: their first argument is written only.
_ONLY_WRITE: Final = {"zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_", "random_"}
# These read as many numbers of their first argument as they return, not all of it.
_GATHER: Final = {"embedding", "index_select", "index", "gather"}
# These take no more of their first argument than its shape and dtype.
_FILLED: Final = {
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_full"),
}
_ONLY_RESERVE: Final = ("empty", "new_empty")  # memory that nobody writes to yet


def bytes_moved(operator: OpOverload, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> int:
    """Return the bytes that one call reads and writes; 0 for a view, which moves nothing."""
    name = operator.overloadpacket.__name__
    if name.startswith(_ONLY_RESERVE):
        return 0
    if not operator._schema.is_mutable and _is_view(arguments, result):
        return 0
    read = arguments[1:] if name in _ONLY_WRITE | _GATHER | _FILLED else arguments
    moved = sum(map(_bytes, _tensors((list(read), dict(named))))) + sum(map(_bytes, _tensors(result)))
    return moved + (sum(map(_bytes, _tensors(result))) if name in _GATHER else 0)


def _is_view(arguments: Sequence[Any], result: Any) -> bool:
    given = {each.data_ptr() for each in storages(list(arguments))}
    made = [each.data_ptr() for each in storages(result)]
    return bool(made) and all(address in given for address in made)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_leaves(value) if isinstance(each, torch.Tensor))


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the different numbers in a tensor: one that was expanded repeats them."""
    if tensor.layout is not torch.strided:
        return sum(each.nbytes() for each in storages(tensor))
    different = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        different *= length if stride or not length else 1
    return different
