"""What the exercises of lesson 00 are judged by."""

from __future__ import annotations

import math
import random

import torch

from amp_lab.course import expect
from amp_lab.course.exercise import Ask, checker
from amp_lab.course.expect import Trial

Shape = tuple[int, ...]

_DTYPES = (
    torch.float16,
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)
# Plain shapes first, so that a slip is shown on one of them; then the corners.
_FIXED: tuple[tuple[Shape, torch.dtype], ...] = (
    ((2, 3), torch.float16),
    ((4, 5, 7), torch.float32),
    ((11,), torch.bfloat16),
    ((2, 3, 5, 7), torch.float64),
    ((3, 1), torch.float8_e4m3fn),
    ((), torch.float32),
    ((), torch.float16),
    ((0, 3), torch.float16),
    ((65536, 65536), torch.float32),
)


def _bytes(shape: Shape, dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


# What somebody would return who has the idea that the diagnosis names.
_MISCONCEPTIONS = (
    ("bits", lambda shape, dtype: 8 * _bytes(shape, dtype)),
    ("always-four", lambda shape, dtype: 4 * math.prod(shape)),
    ("elements", lambda shape, dtype: math.prod(shape)),
    ("forgets-dimension", lambda shape, dtype: _bytes(shape[1:], dtype)),
    ("forgets-dimension", lambda shape, dtype: _bytes(shape[:-1], dtype)),
    ("forgets-dimension", lambda shape, dtype: _bytes(shape[:1], dtype)),
    ("forgets-dimension", lambda shape, dtype: _bytes(shape[-1:], dtype)),
    ("forgets-dimension", lambda shape, dtype: _bytes(shape[:2], dtype)),
    ("adds-dimensions", lambda shape, dtype: sum(shape) * dtype.itemsize),
    ("scalar-is-empty", lambda shape, dtype: _bytes(shape, dtype) if shape else 0),
)


@checker("0.1")
def tensor_bytes(ask: Ask) -> None:
    """Ask for fixed shapes with every corner, and for seeded random ones."""
    draw = random.Random(0)
    drawn = [
        (tuple(draw.randint(1, 40) for _ in range(draw.randint(1, 4))), draw.choice(_DTYPES))
        for _ in range(12)
    ]
    trials = []
    for shape, dtype in (*_FIXED, *drawn):
        got = ask(torch.Size(shape), dtype)
        want = _bytes(shape, dtype)
        trials.append(Trial(ask.call, (shape, dtype), expect.whole_number(ask.call, got, want), want))
    expect.recognise(trials, _MISCONCEPTIONS)
