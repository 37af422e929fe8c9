"""One look at the gradients of all modules: counts by size, as FP16 saw them, that stay on their device until read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from amp_lab.watching.recording.later import Later

EDGE: Final = 2.0**-24  # the smallest number of FP16
NORMAL: Final = 2.0**-14  # its smallest normal number
MOST: Final = 4096  # numbers of one module that are looked at

_KEPT: Final = 64
_FOR_GOOD: Final = 3
_PAD: Final = -1.0  # no size: fills the rows of smaller modules
_UNUSED: Final = -0.5  # a zero in a row of an embedding that is zero throughout


@dataclass(frozen=True, slots=True)
class Counts:
    """The gradients of one module in one step, multiplied by the loss scale as FP16 held them.

    Of more than 4,096 numbers every so manieth is counted; `entries` is how many were.

    Attributes:
        zeros: those that are exactly 0.
        unused: those of `zeros` that are in a row of an embedding which is zero throughout, while others are not.
        ones: those that FP16 rounds to its smallest number, 2^-24.
        twos: those that it rounds to 2 or 3 times that.
        fours: those that it rounds to 4 to 7 times that.
        subnormal: those above 0 and below 2^-14.
        off_grid: those of `subnormal` that are no multiple of 2^-24: FP16 has not rounded them.
        finite: those that are neither infinite nor NaN.
        smallest: the smallest size above 0; infinity if there is none.
        largest: the largest size; 0 if all are zeros.
    """

    module: str
    total: int
    entries: int
    zeros: int
    unused: int
    ones: int
    twos: int
    fours: int
    subnormal: int
    off_grid: int
    finite: int
    smallest: float
    largest: float

    @property
    def nonzero(self) -> int:
        return self.finite - self.zeros


@dataclass(frozen=True, slots=True)
class Part:
    """The modules of one device. `numbers` (modules, 10), FP32: what `read` makes `Counts` of."""

    modules: tuple[str, ...]
    totals: tuple[int, ...]
    entries: tuple[int, ...]
    width: int
    numbers: torch.Tensor

    def read(self) -> list[Counts]:
        found = []
        rows = zip(self.modules, self.totals, self.entries, self.numbers.tolist(), strict=True)
        for module, total, entries, (zeros, unused, *below, finite, off_grid, smallest, largest) in rows:
            first, second, third, normal = (int(each) - (self.width - entries) - int(zeros) for each in below)
            found.append(
                Counts(
                    module,
                    total,
                    entries,
                    int(zeros),
                    int(unused) if unused < entries else 0,
                    first,
                    second - first,
                    third - second,
                    normal,
                    int(off_grid),
                    int(finite) - (self.width - entries),
                    smallest,
                    max(largest, 0.0),
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class Sample:
    """The gradients of a step, between its last backward pass and what uses them. `scale`: the loss scale, or None."""

    step: int
    parts: tuple[Part, ...]
    scale: Later[float] | None

    def read(self) -> list[Counts]:
        """Return the counts of each module, in the model's order. The host waits for the device here."""
        return [counts for part in self.parts for counts in part.read()]


@torch.no_grad()
def take(
    step: int,
    gradients: Mapping[str, Sequence[torch.Tensor]],
    scale: Later[float] | None,
    embeddings: Collection[str] = (),
) -> Sample:
    """Count the gradients of each module, without waiting for any device.

    Args:
        step: the number of the step.
        gradients: for each module its gradients, dense, of any floating-point dtype and shape.
        scale: what they are multiplied by; None: by nothing.
        embeddings: the modules whose rows are words, so that a row of zeros is a word that the batch does not have.
    """
    by_device: dict[torch.device, dict[str, list[torch.Tensor]]] = {}
    for module, some in gradients.items():
        for gradient in some:
            by_device.setdefault(gradient.device, {}).setdefault(module, []).append(gradient.detach())
    return Sample(step, tuple(_part(modules, embeddings) for modules in by_device.values()), scale)


def _part(modules: Mapping[str, Sequence[torch.Tensor]], embeddings: Collection[str]) -> Part:
    rows = [_some_of(gradients, module in embeddings) for module, gradients in modules.items()]
    sizes = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_PAD)
    return Part(
        modules=tuple(modules),
        totals=tuple(sum(each.numel() for each in gradients) for gradients in modules.values()),
        entries=tuple(row.numel() for row in rows),
        width=sizes.shape[1],
        numbers=_count(sizes),
    )


def _some_of(gradients: Sequence[torch.Tensor], words: bool) -> torch.Tensor:
    """Return the sizes of at most `MOST` of a module's gradients, or a few more, in FP32."""
    stride = -(-sum(each.numel() for each in gradients) // MOST)
    parts = [
        _words(each, stride) if words and each.dim() == 2 else _every(each, stride).float().abs()
        for each in gradients
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _words(gradient: torch.Tensor, stride: int) -> torch.Tensor:
    """Return the same of an embedding, with `_UNUSED` in rows that are zero throughout."""
    width = gradient.shape[1]
    while stride > 1 and math.gcd(stride, width) > 1:
        stride += 1
    some = torch.arange(0, gradient.numel(), stride, device=gradient.device)
    rows = gradient.index_select(0, some.div(width, rounding_mode="floor"))
    sizes = rows.gather(1, some.remainder(width)[:, None])[:, 0].float().abs()
    return torch.where((rows == 0).all(1), _UNUSED, sizes)


def _every(gradient: torch.Tensor, stride: int) -> torch.Tensor:
    """Return every so manieth number; the stride is made one that goes through all columns of a matrix."""
    if stride > 1 and gradient.dim():
        while math.gcd(stride, gradient.shape[-1]) > 1:
            stride += 1
    in_memory_order = gradient.permute(sorted(range(gradient.dim()), key=gradient.stride, reverse=True))
    return in_memory_order.reshape(-1)[::stride]


def _count(sizes: torch.Tensor) -> torch.Tensor:
    """Return for each row what `Part.read` reads; fillers count as below every size."""
    below = [(sizes < cut).sum(1) for cut in (1.5 * EDGE, 3.5 * EDGE, 7.5 * EDGE, NORMAL, torch.inf)]
    units = sizes * (1 / EDGE)
    off_grid = ((units < NORMAL / EDGE) & (units != units.round())).sum(1)
    smallest = torch.where(sizes > 0, sizes, torch.inf).amin(1)
    unused = (sizes == _UNUSED).sum(1)
    columns = [(sizes == 0).sum(1) + unused, unused, *below, off_grid, smallest, sizes.amax(1)]
    return torch.stack([each.float() for each in columns], 1)


class Samples:
    """The samples of a run: the first three for good, and of the others at most 61, the older ones farther apart."""

    def __init__(self) -> None:
        self._kept: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Keep a sample. It takes the place of an earlier one of the same step."""
        if self._kept and self._kept[-1].step == sample.step:
            self._kept.pop()
        if len(self._kept) >= _KEPT:
            del self._kept[_FOR_GOOD::2]
        self._kept.append(sample)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._kept)
