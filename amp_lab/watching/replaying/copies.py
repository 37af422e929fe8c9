"""Copies of the numbers of tensors, taken once, and written back after each run of a batch that has changed them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

_SAME_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class Copies:
    """The numbers of tensors as they were.

    Args:
        tensors: of any device and layout.
        weights: of the same model, and of those perhaps very many, which a run hardly ever writes to. On a GPU, whose
            memory training fills, they are copied to the host; there the GPU tells by a sum of their bits, one number
            for each tensor, whether one is to be fetched back.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = (), weights: Iterable[torch.Tensor] = ()) -> None:
        every = list(weights)
        self._here = [(each, _copy(each)) for each in (*tensors, *(e for e in every if not _is_far(e)))]
        self._far = [(each, each.detach().to("cpu", copy=True)) for each in every if _is_far(each)]
        self._sums = _sums([each for each, _ in self._far])

    def put_back(self) -> None:
        """Write the numbers back. The host waits once for a GPU."""
        now = _sums([each for each, _ in self._far])
        changed = [pair for pair, one, other in zip(self._far, self._sums, now, strict=True) if one != other]
        # `.data` shares no version counter: a graph that waits for its backward pass stays valid.
        with torch.no_grad():
            for tensor, numbers in (*self._here, *changed):
                if tensor.shape == numbers.shape:
                    _single(tensor.data, tensor).copy_(_single(numbers, tensor))


def _is_far(tensor: torch.Tensor) -> bool:
    """Return whether a copy goes to the host: of an ordinary tensor of a GPU, whose bits can be added up."""
    plain = type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_complex()
    return tensor.is_cuda and plain and tensor.element_size() in _SAME_SIZE


@torch.no_grad()
def _sums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a sum of the bits of each tensor, modulo 2^64, which any change of one number changes."""
    if not tensors:
        return []
    bits = [each.detach().view(_SAME_SIZE[each.element_size()]) for each in tensors]
    device = tensors[0].device
    return list(map(int, torch.stack([each.sum(dtype=torch.int64).to(device) for each in bits]).tolist()))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _single(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the first of the numbers that are one in memory, in a tensor that was expanded."""
    if tensor.layout is torch.strided:
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dimension] > 1:
                numbers = numbers.narrow(dimension, 0, 1)
    return numbers
