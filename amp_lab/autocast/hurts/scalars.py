"""Plain numbers in the code that 16 bits turn into something else: an epsilon into 0, 1e5 into infinity, 0.9999 into 1.

PyTorch multiplies and adds a plain number in FP32, and rounds the result: what is said here is about results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from amp_lab.autocast.hurts.flow import HALVES, Flow, base, is_written_over, kernel_bases, scalar
from amp_lab.autocast.hurts.remarks import Remark, alike, several
from amp_lab.autocast.records import Op
from amp_lab.formats import BF16, FP16, Format

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

_FORMATS: Final = {torch.float16: FP16, torch.bfloat16: BF16}


class _Lost(NamedTuple):
    """What an operator did with a number that its dtype cannot hold, and what to write instead."""

    sentence: str
    advice: str


def lost_scalars(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """A plain number that is 0, infinite or 1 in the 16 bits of the tensor that it meets.

        scores + (1 - mask.to(scores.dtype)) * -1e9      # -inf in FP16
        scores.masked_fill(mask == 0, float("-inf"))     # better: says what it means
        y / (y.abs().amax(-1, True) + 1e-8)              # 1e-8 is 0 in FP16: 0 / 0
        y / (y.abs().amax(-1, True) + 1e-6)              # better: FP16 holds 1e-6
        average.mul_(0.9999).add_(x, alpha=1e-4)         # in BF16 a number times 0.9999 is that number
        average = torch.zeros(64, dtype=torch.float32)   # better

    Not reported: the same numbers beside an FP32 tensor, and the eps of a norm, which computes in FP32.
    """
    for ops in alike([op for op in flow.ops if _lost(op, flow)], lambda op: _lost(op, flow)):
        lost = _lost(ops[0], flow)
        assert lost is not None
        yield Remark(
            "scalar-lost",
            f"{several(ops)} {lost.sentence}.",
            tuple(op.number for op in ops),
            lost.advice,
        )


def _lost(op: Op, flow: Flow) -> _Lost | None:
    """Return what became of a number that an operator was called with; None if it ran wider, or lost nothing."""
    if op.error or op.view or op.dtype not in HALVES or [each.dtype for each in op.outputs] != [op.dtype]:
        return None
    format, found = _FORMATS[op.dtype], None
    match _plain_name(op):
        case "add" | "rsub":
            found = _added("added", _number(op, "other") * _number(op, "alpha", 1.0), 1, format)
        case "sub":
            found = _added("subtracted", _number(op, "other") * _number(op, "alpha", 1.0), -1, format)
        case "mul":
            factor = _number(op, "other")
            found = _multiplied(factor, factor, "multiplied", format) or _averaged(op, factor, format, flow)
        case "div" if "mode" not in op.kernels[0]:
            divisor = _number(op, "other")
            found = _multiplied(divisor, 1 / divisor if divisor else 0.0, "divided", format)
        case "clamp" | "clamp_min" | "clamp_max":
            found = _lowest(_number(op, "min"), format) or _highest(_number(op, "max"), format)
        case "full" | "full_like" | "new_full" | "scalar_tensor" | "fill" | "masked_fill" | "where":
            numbers = (_number(op, name) for name in ("fill_value", "s", "value", "self", "other"))
            found = next((lost for number in numbers if (lost := _written(number, format))), None)
        case "lerp":
            found = _moved(_number(op, "weight"), format)
    return found


def _number(op: Op, argument: str, otherwise: float = 0.0) -> float:
    """Return a plain number that an operator was called with; 0 for what is no number of the format to begin with."""
    number = scalar(op, argument)
    return otherwise if number is None else float(number) if math.isfinite(number) else 0.0


def _plain_name(op: Op) -> str:
    """Return the name of the one kernel that did the work: "clamp" for clip; else that of the operator."""
    kernels = kernel_bases(op)
    return kernels.pop() if len(kernels) == 1 else base(op)


def _becomes(number: float, format: Format) -> str:
    """Say what a number becomes in a format, if that is 0 or infinite; else nothing."""
    rounded = float(format.round(number))
    if number and rounded == 0:
        return "0"
    return ("-inf" if rounded < 0 else "inf") if math.isinf(rounded) else ""


def _ends(becomes: str, format: Format) -> str:
    limits = format.limits
    if becomes == "0":
        return f"{format}'s smallest number is {limits.smallest_subnormal:.1e}"
    return f"{format}'s largest number is {limits.max:,.5g}"


def _added(verb: str, number: float, sign: int, format: Format) -> _Lost | None:
    becomes = _becomes(sign * number, format)
    if not becomes:
        return None
    where = "to" if sign > 0 else "from"
    change = "which changes none of them" if becomes == "0" else f"which makes {becomes} of 0"
    return _Lost(
        f"{verb} {number:g} {where} {format} numbers, {change}: {_ends(becomes, format)}",
        _instead(becomes, format),
    )


def _multiplied(number: float, factor: float, verb: str, format: Format) -> _Lost | None:
    becomes = _becomes(factor, format)
    if not becomes:
        return None
    return _Lost(
        f"{verb} {format} numbers by {number:g}, which makes {becomes} of 1: {_ends(becomes, format)}",
        _WIDER if becomes == "0" else _instead(becomes, format),
    )


def _lowest(number: float, format: Format) -> _Lost | None:
    if number <= 0 or _becomes(number, format) != "0":
        return None
    return _Lost(
        f"keeps {format} numbers from falling below {number:g}, which is 0 there: {_ends('0', format)}",
        _instead("0", format),
    )


def _highest(number: float, format: Format) -> _Lost | None:
    if not 0 < number < 1 or float(format.round(number)) < 1:
        return None
    return _Lost(
        f"keeps {format} numbers from rising above {number:g}, which is 1 there: the number before 1 is "
        f"{_before_one(format):.4g}",
        _WIDER,
    )


def _written(number: float, format: Format) -> _Lost | None:
    becomes = _becomes(number, format)
    if not becomes:
        return None
    return _Lost(
        f"wrote {number:g} into {format} numbers, where it is {becomes}: {_ends(becomes, format)}",
        _instead(becomes, format),
    )


def _averaged(op: Op, factor: float, format: Format, flow: Flow) -> _Lost | None:
    """A factor so near to 1 that it changes no number, where a sum is kept: in place, or with what is added to it."""
    if (
        factor == 1
        or abs(1 - factor) > _unseen(format)
        or not (is_written_over(op) or _kept(op, factor, flow))
    ):
        return None
    return _Lost(
        f"multiplied {format} numbers by {factor:g}, which changes none of them: the number before 1 is "
        f"{_before_one(format):.4g}",
        _AVERAGES,
    )


def _kept(op: Op, factor: float, flow: Flow) -> bool:
    """Whether the rest to 1 of another tensor is added to a product: factor * average + (1 - factor) * x."""
    for reader in flow.readers(op):
        others = [
            maker for each in reader.inputs if (maker := flow.maker(each)) is not None and maker is not op
        ]
        rests = [
            scalar(reader, "alpha"),
            *(scalar(other, "other") for other in others if base(other) == "mul"),
        ]
        if base(reader) == "add" and any(
            rest and math.isclose(rest, 1 - factor, rel_tol=1e-3) for rest in rests
        ):
            return True
    return False


def _moved(weight: float, format: Format) -> _Lost | None:
    if not 0 < weight < _unseen(format):
        return None
    return _Lost(
        f"moved {format} numbers by {weight:g} of a way: no number moves unless its way is more than about "
        f"{_unseen(format) / weight:.2g} times as long as the number is large",
        _AVERAGES,
    )


def _unseen(format: Format) -> float:
    """Return the part of itself by which a number can change, and be rounded to what it was, whatever it is."""
    return format.limits.eps / 4


def _before_one(format: Format) -> float:
    return 1 - format.limits.eps / 2


_WIDER: Final = "Compute that in FP32: x.float()."
_AVERAGES: Final = "Keep running averages in FP32 (dtype=torch.float32), and add to them in FP32: x.float()."


def _instead(becomes: str, format: Format) -> str:
    if becomes == "0":
        return f"Take a number that {format} holds, such as 1e-6, or compute that in FP32: x.float()."
    mask = (
        "For a mask, hand a boolean mask to scaled_dot_product_attention, or write float('-inf') or "
        "torch.finfo(scores.dtype).min with masked_fill."
    )
    return f"{mask} Compute other numbers in FP32: x.float()." if becomes == "-inf" else f"{_WIDER} {mask}"
