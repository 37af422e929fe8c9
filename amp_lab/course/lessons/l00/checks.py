"""What the exercises of lesson 00 are judged by."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Trial

Shape = tuple[int, ...]

# Plain shapes first, so that a slip is shown on one of them; then the corners. The largest has more elements than FP32
# counts exactly, and still fits into any machine: to make the tensor and measure it is a right answer, too.
_FIXED: tuple[tuple[Shape, torch.dtype], ...] = (
    ((2, 3), torch.float16),
    ((4, 5, 7), torch.float32),
    ((11,), torch.bfloat16),
    ((2, 3, 5, 7), torch.float64),
    ((), torch.float32),
    ((), torch.float16),
    ((0, 3), torch.float16),
    ((4097, 4099), torch.uint8),
)
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.complex64, torch.complex128),
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
    ("forgets-dimension", lambda shape, dtype: _bytes(shape[-2:], dtype)),
    ("counts-dimensions", lambda shape, dtype: len(shape) * dtype.itemsize),
    ("stays-zero", lambda shape, dtype: 0),
    ("python-object", lambda shape, dtype: sys.getsizeof(torch.empty(shape, dtype=dtype, device="meta"))),
    ("adds-dimensions", lambda shape, dtype: sum(shape) * dtype.itemsize),
    ("adds-width", lambda shape, dtype: math.prod(shape) + dtype.itemsize),
    ("scalar-is-empty", lambda shape, dtype: _bytes(shape, dtype) if shape else 0),
)


@checker("0.1")
def tensor_bytes(ask: Ask) -> None:
    """Ask for fixed shapes with every corner, and for every dtype with a shape drawn from a seed."""
    draw = random.Random(0)
    drawn = [(tuple(draw.randint(2, 40) for _ in range(draw.randint(1, 4))), dtype) for dtype in _DTYPES]
    cases = (*_FIXED, *drawn)
    ask.compare(cases, _bytes, _MISCONCEPTIONS, read=expect.whole_number, otherwise=_recognise_width)


def _recognise_width(trials: Sequence[Trial]) -> None:
    """Raise `Mistake` for code that counts the elements rightly and has its own idea of a dtype's width."""
    counted = [(trial, trial.args[1], math.prod(trial.args[0])) for trial in trials]
    widths = {dtype: trial.got // elements for trial, dtype, elements in counted if elements}
    if all(trial.got == elements * widths.get(dtype, 0) for trial, dtype, elements in counted):
        first = next(trial for trial in trials if trial.got != trial.want)
        dtype = first.args[1]
        observed = {"call": first.call, "got": first.got, "want": first.want, "dtype": dtype}
        raise Mistake("element-width", **observed, width=widths[dtype], right_width=dtype.itemsize)
