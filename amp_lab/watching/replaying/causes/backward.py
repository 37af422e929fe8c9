"""Causes in the backward pass: the loss is finite, and gradients are not."""

from __future__ import annotations

import math
from typing import Final

from amp_lab.watching.replaying.causes.case import Case, Verdict
from amp_lab.watching.replaying.causes.hidden import hidden_overflow
from amp_lab.watching.replaying.causes.words import (
    names_in_words,
    numbers,
    power,
    row_in_words,
    what,
)
from amp_lab.watching.replaying.flow import size, true_size
from amp_lab.watching.replaying.records import Replay, Traced
from amp_lab.watching.words import counted, in_words

# Functions whose derivative is not finite somewhere, though they are: sqrt and norm at 0, log where `where` hides it.
_STEEP: Final = frozenset(
    "sqrt rsqrt log log2 log10 log1p pow div true_divide reciprocal norm vector_norm linalg_vector_norm std var "
    "acos asin acosh atanh atan2 logit xlogy cdist prod cumprod float_power".split()
)
_FP16_ENDS: Final = 65504.0


def scale_too_large(case: Case) -> Verdict | None:
    """The batch is finite at a smaller loss scale, 1 or more: the scaler will find it by itself."""
    if not _gradients_only(case) or case.cure is None or case.cure < 1:
        return None
    bad = _worst(case)
    return Verdict(
        "scale-too-large",
        f"At a loss scale of {power(bad.scale)}, {_gradients(bad)} not finite; at {power(case.cure)} they all "
        f"are finite. {_where(case.row)}",
        f"Do nothing: GradScaler skips such a step and halves its scale, until it is at most {power(case.cure)}. To "
        f"save those steps, begin there: GradScaler(init_scale={case.cure:g}).",
        "backward",
        case.row,
        cures=True,
    )


def backward_overflow(case: Case) -> Verdict | None:
    """Gradients on the way back are too large for FP16 even without a loss scale."""
    if not _gradients_only(case):
        return None
    bad, row = _worst(case, small=True), case.row
    if case.cure is not None:
        scales = f"They are finite from a scale of {power(case.cure)} down: {_lost(case.cure)}."
        advice = (
            f"GradScaler goes down to {power(case.cure)} by itself (its scale may be below 1), but small gradients are "
            "lost then. "
        )
    else:
        scales = f"No scale down to {power(case.smallest)} makes them finite."
        advice = ""
    return Verdict(
        "backward-overflow",
        f"Even at a loss scale of {power(bad.scale)}, {_gradients(bad)} not finite. {_where(row)} {scales}",
        f"{advice}Divide the loss by something (a mean instead of a sum), compute the part with the large gradients in "
        "FP32 (torch.autocast(..., enabled=False) and .float()), or use BF16.",
        "backward",
        row,
        cures=case.cure is not None,
    )


def nan_derivative(case: Case) -> Verdict | None:
    """A derivative that is not finite in any format: that of sqrt at 0, of log(0) behind a `where`."""
    row = case.row
    if not _gradients_only(case) or case.cure is not None or row is None:
        return None
    true = true_size(row)
    steep = row.op.name.rstrip("_") in _STEEP and (true is None or not math.isfinite(true))
    if not steep and not (case.bad_in_fp32 and true is not None and not math.isfinite(true)):
        return None
    too = "In FP32 it does not happen: 16 bits made the 0." if case.fine_in_fp32 else "So it is in FP32, too."
    return Verdict(
        "nan-derivative",
        f"The loss is finite, but in the backward pass, {row_in_words(row)} gave {what(row)}: its derivative is not "
        f"finite where it was asked for{_at(case, row)}. {too} No loss scale changes that.",
        "Keep the argument away from there before the function, not after it: log(where(mask, x, 1)) rather than "
        "where(mask, log(x), 0), since 0 times infinity is NaN; sqrt(x + 1e-6) rather than sqrt(x)"
        + (", in FP32." if case.fine_in_fp32 else "."),
        "backward",
        row,
    )


def gradients_leave_fp32(case: Case) -> Verdict | None:
    """Gradients that are not finite in FP32 either, though every derivative is."""
    row = case.row
    if not _gradients_only(case) or case.cure is not None or not case.bad_in_fp32:
        return None
    # With code that casts to FP16 itself, "FP32" had FP16 in it: what the operator should have given decides.
    true = true_size(row) if row is not None else None
    if true is not None and _FP16_ENDS < true < 3.4e38:
        return None
    assert case.fp32 is not None
    return Verdict(
        "fp32-overflow",
        f"The loss is finite, but {_gradients(case.fp32)} not finite, in FP32 without a loss scale, too. {_where(row)}",
        "Mixed precision is not to blame: find out why the gradients are so large (weights that grew, a deep or "
        "recurrent model, division by small numbers).",
        "backward",
        row,
    )


def hidden_behind(case: Case) -> Verdict | None:
    """An infinity that the forward pass hid, and that no scale removes from the gradients."""
    if not _gradients_only(case) or case.cure is not None or not case.fine_in_fp32:
        return None
    return hidden_overflow(case)


def _gradients_only(case: Case) -> bool:
    return not case.finite and not case.forward_bad


def _worst(case: Case, small: bool = False) -> Replay:
    """Return the replay to tell about: the first that overflowed, or of those from 1 up the last."""
    bad = [each for each in case.replays if not each.finite]
    if not small:
        return bad[0]
    ordinary = [each for each in bad if each.scale >= 1]
    return min(ordinary or bad, key=lambda each: each.scale)


def _gradients(replay: Replay) -> str:
    """Write whose gradients are not finite, up to the verb."""
    many = len(replay.bad)
    if many == replay.parameters > 1:
        return f"the gradients of all {many:,} parameters are"
    verb = "is" if many == 1 else "are"
    noun = "gradient" if many == 1 else "gradients"
    return f"the {noun} of {names_in_words(replay.bad)} (of {counted(replay.parameters, 'parameter')}) {verb}"


def _where(row: Traced | None) -> str:
    if row is None:
        return "Where it begins was not seen."
    if row.op.name == "to" and row.op.forward is None and row.makes_it:
        return (
            f"It begins where the backward pass does: the loss is in 16 bits, and so is its gradient, the scale "
            f"itself, {in_words(size(row.inputs))}."
        )
    if not row.makes_it:
        return f"It shows first in {row_in_words(row)}."
    return f"In the backward pass, {row_in_words(row)} {numbers(row)}."


def _lost(scale: float) -> str:
    return f"there, FP16 makes 0 of every gradient up to {in_words(2.0**-25 / scale)}"


def _at(case: Case, row: Traced) -> str:
    forward = case.flow.rows.get(row.op.forward) if row.op.forward is not None else None
    zeros = sum(each.zeros for each in forward.inputs) if forward is not None else 0
    return f" ({zeros:,} of its arguments were 0)" if zeros else ""
