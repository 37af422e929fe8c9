"""Powers and exponentials beyond the range of FP16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import torch

from amp_lab.autocast.hurts.flow import WIDE, Flow, base, scalar
from amp_lab.autocast.hurts.remarks import Remark, alike, several
from amp_lab.autocast.hurts.signs import is_small
from amp_lab.autocast.records import Op
from amp_lab.autocast.report.summary import is_cast
from amp_lab.autocast.report.words import dtype_in_words

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

_EXPONENTIALS: Final = {
    "exp": "e^x is infinite in FP16 from x = 11.1 on",
    "exp2": "2^x is infinite in FP16 from x = 16 on",
    "expm1": "e^x - 1 is infinite in FP16 from x = 11.1 on",
}
_SQUARE: Final = "a square is infinite in FP16 from 256 on, and zero below 0.00018"
_LOG: Final = "the logarithm of a probability that FP16 rounds to 0 is -inf"
_TOO_LARGE: Final = 65520.0  # from here on FP16 rounds to infinity
_ADVICE: Final = (
    "Take PyTorch's whole function (softmax, log_softmax, logsumexp, layer_norm, rms_norm), which keeps its numbers in "
    "range, or cast to FP32 before: x.float().exp()."
)


def by_hand(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Exponentials and powers in FP16: autocast did not take them to FP32.

    e = scores.exp_()          # in-place forms have no rule; nor has exp on a CPU, nor anything outside the region
    p = e / e.sum(-1, True)
    p = scores.softmax(-1)     # better: it subtracts the largest first, and runs in FP32 on CUDA

    Not reported: e^x where x cannot be large, as in (x - x.max()).exp_() and (-x.square()).exp_().
    """
    for ops in alike([op for op in flow.ops if _in_fp16(op) and _beyond(op, flow)], lambda op: op.region):
        place = "autocast is off there" if ops[0].region is None else "autocast has no rule for it there"
        yield Remark(
            "by-hand-in-16-bits",
            f"{several(ops)} ran in FP16 ({place}): {_beyond(ops[0], flow)}.",
            tuple(op.number for op in ops),
            _ADVICE,
        )


def _beyond(op: Op, flow: Flow) -> str:
    """Say where an operator leaves the range of FP16; nothing if it does not."""
    name = base(op)
    if name == "log":
        return _LOG
    return _too_large(op, flow)


def _too_large(op: Op, flow: Flow) -> str:
    name, exponent, of = base(op), scalar(op, "exponent"), scalar(op, "self")
    if name in _EXPONENTIALS:
        return "" if is_small(op.inputs[0], flow) else _EXPONENTIALS[name]
    if name == "square" or (name == "pow" and exponent in (2, None) and of is None):
        return _SQUARE
    if name == "pow" and exponent is not None and exponent > 1:
        return f"x^{exponent:g} is infinite in FP16 from {_TOO_LARGE ** (1 / exponent):.3g} on"
    if name == "pow" and of is not None and of > 1 and not is_small(op.inputs[0], flow):
        return f"{of:g}^x is infinite in FP16 from x = {math.log(_TOO_LARGE, of):.3g} on"
    return ""


def _in_fp16(op: Op) -> bool:
    return op.dtype == torch.float16 and any(each.dtype == torch.float16 for each in op.outputs)


def narrowed(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """An exponential or a power that ran in FP32, and whose result the code takes to FP16 at once.

    e = scores.exp().half()                  # FP32 kept e^12 = 162,755; FP16 makes it infinite
    p = (e / e.sum(-1, True))
    e = scores.exp()                         # better: down to 16 bits when it is small again
    p = (e / e.sum(-1, True)).half()

    Not reported: e^x where x cannot be large, a number without dimensions, and what is made of weights alone.
    """
    for ops in alike([op for op in flow.ops if _narrows(op, flow)]):
        made = flow.maker(ops[0].inputs[0])
        assert made is not None
        yield Remark(
            "narrowed-in-16-bits",
            f"{several(ops)} took the result of {made.name} from {dtype_in_words(made.outputs[0].dtype)} to FP16: "
            f"{_too_large(made, flow)}.",
            tuple(sorted({number for op in ops for number in (op.number, *_maker(op, flow))})),
            "Keep it wide until it is small again (after the division or the mean), and cast then. "
            "For a softmax, take torch.softmax.",
        )


def _maker(op: Op, flow: Flow) -> Iterator[int]:
    made = flow.maker(op.inputs[0])
    if made is not None:
        yield made.number


def _narrows(op: Op, flow: Flow) -> bool:
    if not is_cast(op) or op.outputs[0].dtype != torch.float16 or not op.outputs[0].shape:
        return False
    made = flow.maker(op.inputs[0])
    if made is None or not made.inputs or not made.outputs or made.outputs[0].dtype not in WIDE:
        return False
    return bool(_too_large(made, flow)) and flow.root(made.inputs[0]).name is None


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
            f"{several(ops)} multiplied a tensor by itself in FP16 for a sum or mean: {_SQUARE}.",
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
