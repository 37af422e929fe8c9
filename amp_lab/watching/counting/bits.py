"""Floating-point tensors read as whole numbers, exponent | fraction, a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

# So many numbers are worked on at a time. On a CPU that stays in the cache of a core, and PyTorch works on it alone:
# with more threads it would wait for them more often than they help. A GPU needs more to be busy.
CHUNK: Final = {"cpu": 1 << 15, "cuda": 1 << 24}


class Layout(NamedTuple):
    """A dtype whose bits are looked at: |x| as a whole number, its *magnitude*, is exponent | fraction."""

    whole: torch.dtype
    narrow: torch.dtype  # holds an exponent field
    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        """By how much the exponent field is higher than the exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def fields(self) -> int:
        """How many values the exponent field has."""
        return 1 << self.exponent_bits

    @property
    def infinity(self) -> int:
        """The first magnitude that is no finite number."""
        return (self.fields - 1) << self.fraction_bits

    @property
    def last_bit(self) -> int:
        """The power of two that the last bit of a subnormal number stands for."""
        return 1 - self.bias - self.fraction_bits

    def number(self, magnitude: int) -> float:
        """Return the number of a magnitude; 0 for a subnormal one."""
        exponent, fraction = divmod(magnitude, 1 << self.fraction_bits)
        significand = (1 << self.fraction_bits) + fraction
        return math.ldexp(significand, exponent - 1 + self.last_bit) if exponent else 0.0


_LAYOUTS: Final = {
    torch.float32: Layout(torch.int32, torch.uint8, 8, 23),
    torch.float64: Layout(torch.int64, torch.int16, 11, 52),
}


class Reader:
    """Reads the numbers of one tensor, and keeps the memory for that: fresh memory takes longer to get than the work.

    A dtype of less than 32 bits is read as FP32, which holds all of its numbers.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.dtype = torch.float64 if values.dtype is torch.float64 else torch.float32
        self.layout = _LAYOUTS[self.dtype]
        self._size = CHUNK.get(values.device.type, CHUNK["cpu"])
        # On CUDA bincount waits for the device, to ask it for the largest number. histc does not; but in some releases
        # of PyTorch it is an error under `use_deterministic_algorithms`, although whole numbers are counted exactly.
        self.with_histc = _is_on_gpu(values) and not torch.are_deterministic_algorithms_enabled()
        size, layout = min(self._size, values.numel()), self.layout
        self._magnitudes, self._shifted = (values.new_empty(size, dtype=layout.whole) for _ in range(2))
        self._fields = values.new_empty(size, dtype=layout.narrow)

    def magnitudes(self) -> Iterator[torch.Tensor]:
        """Yield the magnitudes, in any order, chunk by chunk. The next chunk overwrites the last."""
        every_bit_but_the_sign = (1 << (self.layout.exponent_bits + self.layout.fraction_bits)) - 1
        for chunk in _chunks(self.values, self._size):
            magnitudes = self._magnitudes[: chunk.numel()]
            magnitudes.view(self.dtype).view(chunk.shape).copy_(chunk)
            yield magnitudes.bitwise_and_(every_bit_but_the_sign)

    def histogram(self, magnitudes: torch.Tensor, carry: int = 0) -> torch.Tensor:
        """Count magnitudes by their exponent field, after something was added to each.

        What does not fit into the field any more, as an infinite number with a carry, is counted anywhere or nowhere.
        """
        size, layout = magnitudes.numel(), self.layout
        shifted, fields = self._shifted, self._fields
        if size < shifted.numel():
            shifted, fields = shifted[:size], fields[:size]
        torch.add(magnitudes, carry, out=shifted).bitwise_right_shift_(layout.fraction_bits)
        if self.with_histc:
            return torch.histc(shifted, layout.fields, 0, layout.fields)
        inside = fields.copy_(shifted).bitwise_and_(layout.fields - 1)
        return torch.bincount(inside, minlength=layout.fields)


def _is_on_gpu(values: torch.Tensor) -> bool:
    return values.is_cuda


def _chunks(values: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Yield all numbers of a tensor, in any order, in tensors of at most `size`, without copying any."""
    in_memory_order = values.permute(sorted(range(values.dim()), key=values.stride, reverse=True))
    if values.numel() == 0:
        return
    if in_memory_order.is_contiguous():
        yield from torch.split(in_memory_order.view(-1), size)
    elif values.numel() <= size:
        yield in_memory_order
    else:
        longest = max(range(values.dim()), key=values.size)
        for half in values.chunk(2, longest):
            yield from _chunks(half, size)
