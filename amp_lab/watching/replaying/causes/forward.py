"""Causes in the forward pass: what leaves its format there, and what has no finite value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.replaying.causes.case import HALVES, Case, Verdict
from amp_lab.watching.replaying.causes.words import (
    NO_SCALE,
    numbers,
    result_dtype,
    row_in_words,
    what,
)
from amp_lab.watching.replaying.flow import size, true_size
from amp_lab.watching.replaying.records import Traced
from amp_lab.watching.words import in_words, shortened

_FP32_ENDS: Final = float(torch.finfo(torch.float32).max)
_SMALLER: Final = (
    "Make the numbers smaller before the cast: scale the inputs, normalise, divide by a constant."
)
_WEIGHT: Final = (
    "Find out why a weight is so large: a learning rate that is too large, a bad start, no weight decay. Go back to a "
    "checkpoint where it was smaller."
)
_BY_DEFAULT: Final = {"cosine_similarity": 1e-8}  # the eps of those that are called without one
_SMALL: Final = frozenset(
    "add sub clamp clamp_min clip maximum max where full full_like cosine_similarity".split()
)


def cast_overflow(case: Case) -> Verdict | None:
    """Numbers that fit into FP32, and not into the 16 bits that they are cast to."""
    row = case.row
    if not case.forward_bad or row is None or not row.makes_it:
        return None
    largest, dtype, by_hand = _cast(row)
    if dtype is None or (case.fp32_row is not None and not by_hand):
        return None
    who = "the code's own cast" if by_hand else f"autocast's cast for {row.op.name}"
    weight = next(
        (each.name for each in row.inputs if each.name in case.names and each.size == largest), None
    )
    ends = torch.finfo(dtype).max
    return Verdict(
        "cast-overflow",
        f"In the forward pass, {row_in_words(row)} was given {'numbers' if weight is None else shortened(weight)} up "
        f"to {in_words(largest)}, and "
        f"{dtype_in_words(dtype)} ends at {in_words(ends)}: {who} made infinity of them. {NO_SCALE}",
        f"{_SMALLER if weight is None else _WEIGHT} Or keep this part in FP32: with torch.autocast(..., "
        "enabled=False) and .float() there; or use BF16, which reaches as far as FP32.",
        "forward",
        row,
    )


def eps_lost(case: Case) -> Verdict | None:
    """A small constant against a division by 0, which 16 bits make 0."""
    row = case.row
    if row is None or case.finite or case.cure is not None:
        return None
    true = true_size(row)
    if true is not None and math.isfinite(true):
        return None
    at = case.flow.rows.get(row.op.forward, row) if row.op.forward is not None else row
    found = next(_small_constants(case, at), None)
    if found is None:
        return None
    where, eps = found
    phase: Literal["forward", "backward"] = "forward" if case.forward_bad else "backward"
    return Verdict(
        "eps-lost",
        f"In the {phase} pass, {row_in_words(row)} gave {what(row)}: it met 0, although {row_in_words(where)} has "
        f"{in_words(eps)} against that. FP16 rounds numbers up to {in_words(2.0**-25)} to 0, so the constant is lost; "
        "in FP32 it is not. No loss scale changes that.",
        "Take a constant that FP16 holds, 1e-4 or larger (its smallest number is 5.96e-8, and below 6.1e-5 it has few "
        "digits), or compute this part in FP32: .float() before the constant is added.",
        phase,
        row,
    )


def fp32_overflow(case: Case) -> Verdict | None:
    """Numbers that leave FP32, too: mixed precision is not to blame."""
    row = case.row
    if not case.forward_bad or row is None or (case.fp32 is not None and not case.loss_bad_in_fp32):
        return None
    wide = result_dtype(row) not in HALVES or (true_size(row) or 0.0) > _FP32_ENDS
    if not wide and case.fp32_row is None:
        return None
    row, how = (row, "In") if wide or case.fp32_row is None else (case.fp32_row, "Without autocast, in")
    return Verdict(
        "fp32-overflow",
        f"{how} the forward pass, {row_in_words(row)} {numbers(row)}. Mixed precision is not to blame, and no loss "
        "scale changes it.",
        "Find out why the numbers are so large: weights that grew (a smaller learning rate, warm-up, gradient "
        "clipping), inputs that are not normalised, or exp of large numbers (use logsumexp, log_softmax, softplus).",
        "forward",
        row,
    )


def forward_overflow(case: Case) -> Verdict | None:
    """A result that is too large for its format, of numbers that are not."""
    row = case.row
    if not case.forward_bad or row is None:
        return None
    others = [each for each in case.spoiling if each.makes_it and each is not row]
    return Verdict(
        "forward-overflow",
        f"In the forward pass, {row_in_words(row)} {numbers(row)}. {NO_SCALE}",
        f"Compute this part in FP32: .float() on what goes in, inside torch.autocast(..., enabled=False). Or make "
        f"what goes in smaller: divide by a constant first ({_divisor(row)}), normalise it, or divide before the sum "
        f"instead of after it. Or use BF16, which reaches as far as FP32.",
        "forward",
        row,
        others=tuple(others),
    )


def _divisor(row: Traced) -> str:
    true = true_size(row)
    if true is None or not math.isfinite(true) or true <= 0:
        return "by 64, say"
    limit = torch.finfo(result_dtype(row) or torch.float16).max
    return f"by {2 ** max(1, math.ceil(math.log2(true / limit)) + 1):,}, say"


def _cast(row: Traced) -> tuple[float, torch.dtype | None, bool]:
    """Return the largest number that a cast to 16 bits made infinite, the dtype, and whether the code casts itself."""
    copies = [each for each in row.op.kernels if each.startswith(("aten._to_copy", "aten.copy_"))]
    if copies and len(copies) == len(row.op.kernels) and result_dtype(row) in HALVES:
        return max(size(row.inputs), true_size(row) or 0.0), result_dtype(row), True
    for cast in row.op.casts:
        if cast.dtype not in HALVES:
            continue
        for read in row.inputs:
            same = (read.made_by, read.name, read.shape) == (
                cast.value.made_by,
                cast.value.name,
                cast.value.shape,
            )
            if same and read.dtype not in HALVES and _rounds_to_infinity(read.size, cast.dtype):
                return read.size, cast.dtype, False
    return 0.0, None, False


def _rounds_to_infinity(number: float, dtype: torch.dtype) -> bool:
    return math.isinf(torch.tensor(number, dtype=torch.float64).to(dtype).item())


def _small_constants(case: Case, row: Traced) -> Iterator[tuple[Traced, float]]:
    """Yield constants that FP16 makes 0, of rows before this one, and those rows.

    Those that were added in FP32 count, too, if the sum was cast: it is 0 then. But not if FP32 has a 0 there itself.
    """
    for each in [row, *case.flow.before(row)]:
        if each.op.name.rstrip("_") not in _SMALL:
            continue
        numbers = [number for _, number in each.op.scalars]
        if each.op.name in _BY_DEFAULT and "eps" not in dict(each.op.scalars):
            numbers.append(_BY_DEFAULT[each.op.name])
        numbers += [
            read.size for read in each.inputs if read.made_by is None and read.name is None and read.of == 1
        ]
        lost = [abs(number) for number in numbers if 0 < abs(number) <= 2.0**-25]
        halves = [each.op.dtype, *(out.dtype for out in each.outputs)]
        if lost and (torch.float16 in halves or (case.fine_in_fp32 and result_dtype(row) in HALVES)):
            yield each, lost[0]
