"""A function that is asked where it has no finite value, in any format: log(0), 1/0, a variance of 0 without an eps."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch

from amp_lab.watching.replaying.causes.case import Case, Verdict
from amp_lab.watching.replaying.causes.words import NO_SCALE, row_in_words, what
from amp_lab.watching.replaying.flow import nan_from_infinity, size, true_size
from amp_lab.watching.replaying.records import Traced
from amp_lab.watching.words import in_words

_POLES: Final = frozenset(
    "log log2 log10 log1p div true_divide reciprocal rsqrt sqrt pow atanh acosh acos asin logit xlogy digamma lgamma "
    "erfinv std var var_mean std_mean remainder fmod float_power norm vector_norm linalg_vector_norm".split()
)
_POWERS: Final = frozenset(["pow", "float_power"])
# All that can leave FP64, too, of numbers that FP32 holds: there, infinity means "too large" and no pole.
_STEEP: Final = _POWERS | frozenset(
    "exp exp2 expm1 sinh cosh prod cumprod logcumsumexp einsum matrix_power matrix_exp linalg_matrix_power".split()
)
# What writes an infinity that the code asks for.
_WRITERS: Final = frozenset(
    "masked_fill full full_like new_full where fill fill_diagonal masked_scatter".split()
)


class _Known(NamedTuple):
    """What is known of a layer that meets a pole inside: why, and what to do."""

    why: str
    do: str


_SAME: Final = _Known(
    "numbers that are all the same have a variance of 0, and without an eps this divides by it",
    "Give it an eps (1e-5; 0 is none), and find out why what goes in is constant.",
)
_ONE: Final = _Known(
    "the spread of a single number is 0/0 (correction=1 divides by one less than there are)",
    "Take more than one number, or correction=0.",
)
_TO_ONE: Final = _Known(
    "it is defined from -1 to 1 only, and rounding is enough to go beyond",
    "Clamp its argument, in FP32: x.clamp(-1 + 1e-6, 1 - 1e-6).",
)
_INSIDE: Final = {
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _ONE),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), _TO_ONE),
    **dict.fromkeys(("layer_norm", "group_norm", "instance_norm", "batch_norm", "rms_norm"), _SAME),
    "weight_norm": _Known(
        "a row of the weight is 0 throughout, which has a length but no direction",
        "Let no row of the direction (original1, or weight_v) be 0: to begin with a layer that gives 0, set its length "
        "(original0, or weight_g) to 0 instead.",
    ),
    "ctc_loss": _Known(
        "a target is longer than its input (labels that repeat need a blank between them), so it has no probability",
        "Leave such samples out, make the model's output longer (less striding), or give ctc_loss zero_infinity=True.",
    ),
}


def pole(case: Case) -> Verdict | None:
    """log(0), 1/0, 0/0, the root of a negative number, or such a thing inside a layer: not finite in any format."""
    row = case.row
    if not case.forward_bad or row is None or not row.makes_it or row.op.name.rstrip("_") in _WRITERS:
        return None
    true, name = true_size(row), row.op.name.rstrip("_").lstrip("_")
    if true is not None and math.isfinite(true):
        return None
    if name not in _POLES and not (true is not None and _has_none(case, row)):
        return None
    if name in _POWERS and not any(each.zeros for each in row.inputs) and not row.outputs[0].nan:
        return None  # too large, in FP64 too
    return Verdict(
        "pole",
        f"In the forward pass, {row_in_words(row)} gave {what(row)}: {_met(row, name)}. {_formats(case)} {NO_SCALE}",
        _INSIDE[name].do if name in _INSIDE else _away(case.fine_in_fp32),
        "forward",
        row,
    )


def written_infinity(case: Case) -> Verdict | None:
    """0 times, or a difference of, an infinity that the code wrote itself, such as -inf where something is masked."""
    row = case.row
    if not case.forward_bad or row is None or case.fine_in_fp32 or not nan_from_infinity(row):
        return None
    writer = case.spoiling[0]
    if (
        writer is row
        or writer.op.name.rstrip("_") not in _WRITERS
        or all(each.finite for each in writer.outputs)
    ):
        return None
    return Verdict(
        "pole",
        f"In the forward pass, {row_in_words(row)} gave NaN: 0 times infinity, or infinity less infinity, and it is "
        f"{row_in_words(writer)} that writes the infinity. So it is in FP32, too. {NO_SCALE}",
        "Write infinity only into what goes straight into a softmax or a logsumexp. Elsewhere, select instead of "
        "multiplying by 0: torch.where(mask, x, 0.0).sum(), or x.masked_fill(~mask, 0.0).sum().",
        "forward",
        row,
    )


def _has_none(case: Case, row: Traced) -> bool:
    """Whether there is no value in FP64 either, though nothing that went in is too large for that."""
    wide = any(each.dtype == torch.float64 for each in (*row.inputs, *row.outputs))
    return case.fp32 is not None and not wide and row.op.name.rstrip("_") not in _STEEP


def _formats(case: Case) -> str:
    """Say whether FP32 has the pole, too."""
    if case.fine_in_fp32:
        return "FP32 has no such number there: 16 bits made it."
    if case.fp32_trace is not None and case.fp32_row is None:
        return "So it is without autocast, too: the code casts to 16 bits itself."
    return "So it is in FP32, too."


def _met(row: Traced, name: str) -> str:
    if name in _INSIDE:
        return _INSIDE[name].why
    zeros = sum(each.zeros for each in row.inputs)
    if name not in _POLES:
        return f"it has no finite value there, though what went in was no larger than {in_words(size(row.inputs))}"
    if zeros:
        return f"{zeros:,} of the numbers that it was given are 0"
    return "a number lies outside what it is defined for"


def _away(fine_in_fp32: bool) -> str:
    return (
        "Keep its argument away from there: clamp it (x.clamp(min=1e-6)), add a constant, or use a function that does "
        "both steps at once (log_softmax for log(softmax), binary_cross_entropy_with_logits, log1p, F.normalize)"
        + (", and keep this part in FP32." if fine_in_fp32 else ".")
    )
