"""The inputs and parameters of exercise 6.2, and what is right for them in FP64.

Rounding must not decide on which side of relu's edge an output lies: its gradient is all or nothing there. So rows are
drawn until every number that enters relu is farther from 0 than `_MARGIN` times what rounding may do to it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from amp_lab.course.lessons.l06.seeing import Region

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
WIDTH = 16
SHAPES = {"gain": (WIDTH,), "weight": (WIDTH, WIDTH), "bias": (WIDTH,)}
# How far an output may be off, in parts of the sum of the sizes of what is added up: a few roundings of that dtype.
OFF: dict[Region, float] = {_HALF: 4 * 2.0**-11, _BRAIN: 4 * 2.0**-8, None: 32 * 2.0**-24}
_MARGIN = 2.5
_DRAWS = 1000
Leaves = dict[str, torch.Tensor]


@functools.cache
def parameters(seed: int = 2) -> Leaves:
    """Return values for the three parameters."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "gain": torch.rand(WIDTH, generator=draw) + 0.5,
        "weight": torch.randn(WIDTH, WIDTH, generator=draw) / 2,
        "bias": torch.randn(WIDTH, generator=draw) / 2,
    }


class Right(NamedTuple):
    """What enters relu, in FP64, the sum of the sizes of what is added up there, and how far one may be off."""

    inner: torch.Tensor
    size: torch.Tensor
    near: torch.Tensor

    @property
    def output(self) -> torch.Tensor:
        """The right output."""
        return torch.relu(self.inner)


def right(x: torch.Tensor, leaves: Leaves, region: Region) -> Right:
    """Compute the block in FP64; with leaves that need a gradient, it can be walked back."""
    x, gain, weight, bias = (each.double() for each in (x, leaves["gain"], leaves["weight"], leaves["bias"]))
    normed = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * gain
    size = normed.abs() @ weight.abs() + bias.abs()
    return Right(normed @ weight + bias, size, OFF[region] * size)


class Case(NamedTuple):
    """One run. `sizes` are the sizes of the rows of `x`, in turn; `learns` says whether anything needs a gradient."""

    region: Region
    dtype: torch.dtype
    sizes: tuple[float, ...]
    shape: tuple[int, ...]
    learns: bool = True

    def x(self) -> torch.Tensor:
        """Make the input."""
        draw = torch.Generator().manual_seed(len(self.shape) + len(self.sizes))
        count = torch.Size(self.shape).numel()
        sizes = torch.tensor([self.sizes[i % len(self.sizes)] for i in range(count)])
        drawn = (torch.rand(count, _DRAWS, WIDTH, generator=draw) * 2 - 1) * sizes[:, None, None]
        drawn = drawn.to(self.dtype)
        found = right(drawn, parameters(), self.region)
        clear = (found.inner.abs() > _MARGIN * found.near).all(dim=-1)
        rows = drawn[torch.arange(count), clear.int().argmax(dim=1)]  # of each row, the first clear one
        return rows.reshape(*self.shape, WIDTH).requires_grad_(self.learns)


_PLAIN, _LARGE, _SMALL = (3.0, 1.0, 20.0), (300.0, 2.0, 6000.0, 900.0), (0.01, 2.0, 0.001)
CASES = (
    Case(_HALF, _HALF, _PLAIN, (5,)),
    Case(_HALF, _SINGLE, _PLAIN, (7,)),
    Case(_BRAIN, _SINGLE, _PLAIN, (5,)),
    Case(None, _SINGLE, _PLAIN, (6,)),
    Case(_HALF, _HALF, _LARGE, (4,)),
    Case(_HALF, _SINGLE, _LARGE, (2, 3)),
    Case(_BRAIN, _SINGLE, _LARGE, (2, 2, 3)),
    Case(None, _SINGLE, _LARGE, (5,)),
    Case(_HALF, _HALF, (0.0, 5.0), (4,)),
    Case(_HALF, _HALF, _SMALL, (6,)),
    Case(_BRAIN, _SINGLE, _SMALL, (3,)),
    Case(_HALF, _SINGLE, _PLAIN, (4,), learns=False),
)
