"""The range of a tensor's numbers, taken while a model runs, and without changing anything."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch

from amp_lab.watching.replaying.records import Range

_MIN_MAX: Final = {torch.float64, torch.float32, torch.float16, torch.bfloat16}  # what aminmax takes


def range_of(tensor: torch.Tensor, name: str | None = None, made_by: int | None = None) -> Range:
    """Return the range of a floating-point or complex tensor on any device, from FP8 to FP64; of parts, if complex.

    A tensor without numbers (empty, on the meta device, fake), or whose layout is not known, has a range of 0 numbers.
    Waits for a GPU, once for finite numbers, twice for others.
    """
    empty = blank(tensor, name, made_by)
    try:
        with torch.no_grad():
            numbers, times = _plain(tensor)
            if not numbers.numel() or numbers.is_meta:
                return empty
            return _counted(empty, numbers, times)
    except (RuntimeError, NotImplementedError):
        return empty


def blank(tensor: torch.Tensor, name: str | None = None, made_by: int | None = None) -> Range:
    """Return the range of a tensor of whose numbers nothing is said."""
    return Range(tuple(map(int, tensor.shape)), tensor.dtype, 0.0, 0.0, 0, 0, 0, 0, 0, name, made_by)


def of_number(value: float, dtype: torch.dtype, name: str | None = None) -> Range:
    """Return the range of one number."""
    size = value if math.isfinite(value) else 0.0
    return Range(
        (), dtype, size, size, int(value == math.inf), int(value == -math.inf), int(value != value),
        int(value == 0.0), 1, name,
    )  # fmt: skip


def _plain(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor's numbers, real, and in a dtype that can be compared; and how often each occurs in it."""
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    tensor = tensor.detach()
    times = 1
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:  # expanded
            tensor, times = tensor.narrow(axis, 0, 1), times * size
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.dtype in _MIN_MAX else tensor.float(), times


def _counted(empty: Range, numbers: torch.Tensor, times: int) -> Range:
    low, high = torch.aminmax(numbers)  # NaN, if one is in it
    answers = [low, high, torch.count_nonzero(numbers)]
    smallest, largest, other = torch.stack([each.double() for each in answers]).tolist()
    of = numbers.numel() * times
    zeros = (numbers.numel() - int(other)) * times
    if math.isfinite(smallest) and math.isfinite(largest):
        return replace(empty, smallest=smallest, largest=largest, zeros=zeros, of=of)
    return replace(_with_infinities(empty, numbers, times), zeros=zeros, of=of)


def _with_infinities(empty: Range, numbers: torch.Tensor, times: int) -> Range:
    nan, infinite = numbers.isnan(), numbers.isinf()
    finite = ~(nan | infinite)
    positive = infinite & (numbers > 0)
    counts = torch.stack([each.sum() for each in (positive, infinite, nan, finite)]).tolist()
    smallest = largest = 0.0
    if counts[3]:
        smallest = float(torch.where(finite, numbers, math.inf).min())
        largest = float(torch.where(finite, numbers, -math.inf).max())
    return replace(
        empty,
        smallest=smallest,
        largest=largest,
        positive=counts[0] * times,
        negative=(counts[1] - counts[0]) * times,
        nan=counts[2] * times,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    tensor: weakref.ref[torch.Tensor]
    address: int
    writes: int
    range: Range


class Ranges:
    """Ranges of the tensors that a run meets: each is looked at again only after something was written to its memory.

    Memory that nothing was written to yet has a range of 0 numbers.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._writes: Counter[int] = Counter()  # by where the memory begins
        self._fresh: set[int] = set()

    def of(self, tensor: torch.Tensor) -> Range | None:
        """Return the range of a tensor's numbers now; None for integers and truth values."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        address = address_of(tensor)
        if address in self._fresh:
            return blank(tensor)
        known = self._known.get(id(tensor))
        writes = self._writes[address]
        if (
            known is None
            or known.tensor() is not tensor
            or (known.address, known.writes) != (address, writes)
        ):
            known = _Known(weakref.ref(tensor), address, writes, range_of(tensor))
            self._known[id(tensor)] = known
        return known.range

    def note_written(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note what a kernel has written to: into an argument, or as a result of its own."""
        for address in {address_of(tensor) for tensor in tensors}:
            self._writes[address] += 1
            self._fresh.discard(address)

    def note_fresh(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note memory that was handed out as it was found."""
        self._fresh.update(address for tensor in tensors if (address := address_of(tensor)))


def address_of(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory begins; 0 for one that has none of its own (sparse, empty, wrapped)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
