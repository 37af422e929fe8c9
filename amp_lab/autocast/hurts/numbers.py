"""Numbers that 16 bits cannot hold: integers beyond their digits, powers and exponentials beyond their range."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import torch

from amp_lab.autocast.hurts.flow import HALVES, Flow, base, numel
from amp_lab.autocast.hurts.remarks import Remark, alike, several
from amp_lab.autocast.records import Op, Value
from amp_lab.autocast.report.summary import is_cast
from amp_lab.autocast.report.words import dtype_in_words

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

# All whole numbers up to here are exact: 11 significant bits, and 8.
_EXACT: Final = {torch.float16: 2048, torch.bfloat16: 256}
_ARANGE: Final = re.compile(r"\barange\(((?:[^()]|\([^()]*\))*)\)")


def integers(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Positions or ids that 16 bits round to others: above 2,048 in FP16, above 256 in BF16.

        t = torch.arange(4096).half()        # 2049 becomes 2048
        angles = torch.outer(t, frequencies)  # under autocast: the same, for t in FP32
        with torch.autocast("cuda", enabled=False):  # better: positions in FP32 until they are sines
            angles = torch.outer(t.float(), frequencies)

    It speaks only of what is known: a `torch.arange` that counts so far.
    """
    for ops in alike([op for op in flow.ops if _counts_too_far(op, flow)]):
        found = _counts_too_far(ops[0], flow)
        assert found is not None
        counter, last, dtype = found
        name, exact = dtype_in_words(dtype), _EXACT[dtype]
        too_large = " From 65,520 on they are infinite." if dtype == torch.float16 and last >= 65520 else ""
        yield Remark(
            "integers-in-16-bits",
            f"{several(ops)} took whole numbers up to {last:,} or more to {name}, which holds all of them only up to "
            f"{exact:,}: {exact + 1:,} becomes {exact:,}.{too_large}",
            tuple(sorted({counter.number, *(op.number for op in ops)})),
            "Keep positions and ids in integers or FP32 (inside the region with autocast switched off around the "
            "product), and cast what is computed from them, such as sines, which are small.",
        )


def _counts_too_far(op: Op, flow: Flow) -> tuple[Op, int, torch.dtype] | None:
    """Return an arange, the number that it reaches at least, and the 16 bits without it that an operator chose."""
    for value, dtype in _narrowed(op):
        counter, numbers = (op, numel(op.outputs[0])) if value is None else _counter(value, flow)
        if counter and numbers - 1 > _EXACT[dtype]:
            return counter, numbers - 1, dtype
    return None


def _narrowed(op: Op) -> Iterator[tuple[Value | None, torch.dtype]]:
    """Yield what an operator takes to 16 bits; None stands for numbers that it makes itself."""
    if op.view:
        return
    result = op.outputs[0].dtype if op.outputs else None
    if base(op) == "arange" and result in _EXACT:
        yield None, result
    for cast in op.casts:
        if cast.dtype in _EXACT:
            yield cast.value, cast.dtype
    if result in _EXACT:
        for value in op.inputs:
            promoted = not value.dtype.is_floating_point and _mixes(op)
            if promoted or (is_cast(op) and value.dtype not in HALVES):
                yield value, result


def _mixes(op: Op) -> bool:
    """Whether an operator computes with its integers as numbers, and does not use them as places."""
    return base(op) in {"add", "sub", "rsub", "mul", "div", "pow", "where", "cat", "copy"}


def _counter(value: Value, flow: Flow) -> tuple[Op | None, int]:
    """Return the arange that a value shows, through views and casts to wider dtypes, and how many of its numbers.

    So many different whole numbers reach at least that far; a slice may show the small ones only.
    """
    numbers = numel(value)
    for each in flow.way_back(value):
        numbers = min(numbers, numel(each.outputs[0]))
        if base(each) == "arange":
            return (each if _by_ones(each) else None), numbers
        if not each.view and not (is_cast(each) and each.outputs[0].dtype not in HALVES):
            break
    return None, 0


def _by_ones(op: Op) -> bool:
    """Whether an arange counts in steps of one: integers do at least; of others, the line of code must say it."""
    if not op.outputs[0].dtype.is_floating_point:
        return True
    call = _ARANGE.search(op.source.text) if op.source else None
    if call is None:
        return False
    positional = [each for each in call[1].split(",") if each.strip() and "=" not in each]
    return len(positional) <= 2 and "step" not in call[1]


_BY_HAND: Final = {
    "exp": "e^x is infinite in FP16 from x = 11.1 on",
    "exp2": "2^x is infinite in FP16 from x = 16 on",
    "expm1": "e^x - 1 is infinite in FP16 from x = 11.1 on",
    "pow": "a square is infinite in FP16 from 256 on, and zero below 0.00018",
    "square": "a square is infinite in FP16 from 256 on, and zero below 0.00018",
    "log": "the logarithm of a probability that FP16 rounds to 0 is -inf",
}


def by_hand(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Exponentials and powers in FP16: autocast did not take them to FP32.

    e = scores.exp_()          # in-place forms have no rule; nor has exp on a CPU, nor anything outside the region
    p = e / e.sum(-1, True)
    p = scores.softmax(-1)     # better: it subtracts the largest first, and runs in FP32 on CUDA
    """
    for ops in alike([op for op in flow.ops if base(op) in _BY_HAND and _in_fp16(op)], lambda op: op.region):
        place = "autocast is off there" if ops[0].region is None else "autocast has no rule for it there"
        yield Remark(
            "by-hand-in-16-bits",
            f"{several(ops)} ran in FP16 ({place}): {_BY_HAND[base(ops[0])]}.",
            tuple(op.number for op in ops),
            "Take PyTorch's whole function (softmax, log_softmax, logsumexp, layer_norm, rms_norm), which keeps its "
            "numbers in range, or cast to FP32 before: x.float().exp().",
        )


def _in_fp16(op: Op) -> bool:
    return op.dtype == torch.float16 and any(each.dtype == torch.float16 for each in op.outputs)


def squares_by_hand(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """A mean or a sum of `x * x` in FP16, as in a hand-written norm. A wrong norm shows no NaN: x / inf is 0.

    x * torch.rsqrt((x * x).mean(-1, True) + eps)  # x = 300: x * x = inf, and the result 0
    F.rms_norm(x, x.shape[-1:])                    # better
    """
    products = [op for op in flow.ops if base(op) == "mul" and _in_fp16(op) and _by_itself(op, flow)]
    summed = [op for op in products if any(base(each) in {"mean", "sum"} for each in flow.readers(op))]
    for ops in alike(summed):
        yield Remark(
            "squares-in-16-bits",
            f"{several(ops)} multiplied a tensor by itself in FP16 for a sum or mean: {_BY_HAND['square']}.",
            tuple(op.number for op in ops),
            "Take F.rms_norm or F.layer_norm, or cast before the square: x = x.float().",
        )


def _by_itself(op: Op, flow: Flow) -> bool:
    """Whether both factors are one tensor: made by one operator that made nothing else."""
    if len(op.inputs) != 2 or op.inputs[0] != op.inputs[1]:
        return False
    maker = op.inputs[0].made_by
    made = next((each for each in flow.ops if each.number == maker), None)
    return made is not None and len(made.outputs) == 1
