"""Exercise 8.3: the next size whose rows are whole pieces of 16 bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Misconceptions, Mistake, Region, Trial

_PIECE = 16  # bytes
FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INT8, FP8 = torch.int8, torch.float8_e4m3fn


def multiple_of(dtype: torch.dtype) -> int:
    """Return how many numbers of `dtype` fill one piece."""
    return _PIECE // dtype.itemsize


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def right(n: int, dtype: torch.dtype) -> int:
    """Return the smallest size that is not below `n` and fills whole pieces."""
    return _up(n, multiple_of(dtype))


def _nearest(n: int, dtype: torch.dtype) -> int:
    multiple = multiple_of(dtype)
    return math.floor(n / multiple + 0.5) * multiple


_ANYWHERE: Misconceptions = (
    ("rounds-down", lambda n, dtype: n // multiple_of(dtype) * multiple_of(dtype)),
    ("rounds-to-nearest", _nearest),
    ("rounds-to-nearest", lambda n, dtype: round(n / multiple_of(dtype)) * multiple_of(dtype)),
    ("only-what-is-missing", lambda n, dtype: -n % multiple_of(dtype)),
    ("pieces", lambda n, dtype: -(-n // multiple_of(dtype))),
    ("returns-bytes", lambda n, dtype: right(n, dtype) * dtype.itemsize),
    ("always-the-same", lambda n, dtype: _up(n, 8)),
    ("always-the-same", lambda n, dtype: _up(n, 64)),
    ("sixteen-numbers", lambda n, dtype: _up(n, _PIECE)),
    ("itemsize", lambda n, dtype: _up(n, dtype.itemsize)),
    ("sixteen-times", lambda n, dtype: _up(n, _PIECE * dtype.itemsize)),
    ("bits", lambda n, dtype: _up(n, 8 * _PIECE // dtype.itemsize)),
    ("bits", lambda n, dtype: _up(n, max(_PIECE // (8 * dtype.itemsize), 1))),
    ("power-of-two", lambda n, dtype: 1 << (n - 1).bit_length()),
    ("adds-a-piece", lambda n, dtype: n + multiple_of(dtype)),
)


def _some_dtypes(trials: Sequence[Trial]) -> None:
    """Name a dtype whose multiple is wrong, if there is one whose multiple is right."""
    wrong = {trial.args[1] for trial in trials if trial.got != trial.want}
    if wrong == {trial.args[1] for trial in trials}:
        return
    trial = next(trial for trial in trials if trial.got != trial.want)
    dtype = trial.args[1]
    seen = {"dtype": dtype, "itemsize": dtype.itemsize, "multiple": multiple_of(dtype)}
    raise Mistake("some-dtypes", **expect.first_wrong([trial]), **seen)


REGIONS = (
    Region(
        (
            (50257, FP16),  # the vocabulary of GPT-2
            (28996, BF16),  # and that of BERT
            (33, FP16),
            (1007, FP16),
            (1025, BF16),
            (33, FP32),
            (65, FP32),
            (17, INT8),
            (50257, INT8),
            (69, FP8),
            (30521, FP64),
        ),
        _ANYWHERE,
        _some_dtypes,
    ),
    Region(
        ((64, FP16), (1000, BF16), (8, FP16), (1004, FP32), (48, INT8), (1008, FP8), (30522, FP64)),
        (
            ("pads-what-is-aligned", lambda n, dtype: (n // multiple_of(dtype) + 1) * multiple_of(dtype)),
            *_ANYWHERE,
        ),
    ),
    Region(((1, FP16), (1, FP32), (1, INT8), (7, BF16), (2**31 + 1, FP16), (2**31 + 1, FP8)), _ANYWHERE),
)


@checker("8.3")
def pad_to_multiple(ask: Ask) -> None:
    """Ask for sizes between two multiples, of all dtypes; then for multiples; then for very small and large ones."""
    cases: list[tuple[Any, ...]] = [case for region in REGIONS for case in region.cases]
    ask.compare(cases, right, (), read=expect.whole_number, otherwise=expect.region_by_region(REGIONS))
