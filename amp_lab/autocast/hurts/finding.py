"""What hurts a model under autocast: warnings that an x-ray can prove from what it saw.

Each function looks for one thing, and its docstring shows code that triggers it and better code. All are careful:
a healthy model gets none, but for a cross-entropy of 16-bit logits, which most have. `remarks` asks them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.hurts.casts import cast_again, there_and_back
from amp_lab.autocast.hurts.flow import (
    HALVES,
    Flow,
    is_matmul,
    is_written_over,
    kernel_bases,
    multiplications,
)
from amp_lab.autocast.hurts.integers import integers
from amp_lab.autocast.hurts.losses import coarse_losses
from amp_lab.autocast.hurts.powers import by_hand, narrowed, squares_by_hand
from amp_lab.autocast.hurts.remarks import Remark, Remarks, alike, several
from amp_lab.autocast.hurts.scalars import lost_scalars
from amp_lab.autocast.hurts.tensors import fp64_tensors, hard_coded, other_half
from amp_lab.autocast.report.words import dtype_in_words, dtypes_of, given_in_words, op_in_words

if TYPE_CHECKING:
    from amp_lab.autocast.records import Op
    from amp_lab.autocast.report.xrayed import XRay

_MUCH: Final = 0.1  # of all multiplications: less is no hot path
_WITH_VECTOR: Final = {"mv", "addmv", "dot", "vdot"}
_ABOUT_DTYPES: Final = ("dtype", "scalar type", "c10::", "autocast", "Half", "BFloat16", "unscale FP16")


def fp32_products(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Matrix products that run in FP32, where they are a tenth of all multiplications or more.

        with torch.autocast("cuda", enabled=False):
            scores = q.float() @ k.float().T  # FP32 on purpose? Then it is well.
        torch.mm(a, b, out=c)                 # out= and in-place forms have no rule: FP32
        c = torch.mm(a, b)                    # better: FP16

    Less than a tenth is no hot path: a small head or router kept in FP32 costs little. Nor is the product of a matrix
    and a vector, which waits for memory, not for multiplications.
    """
    products = [
        op for op in flow.ops if is_matmul(op) and not kernel_bases(op) & _WITH_VECTOR and not op.error
    ]
    every = sum(map(multiplications, products))
    slow = [op for op in products if op.dtype == torch.float32]
    share = sum(map(multiplications, slow)) / every if every else 0.0
    if share < _MUCH:
        return
    for ops in alike(slow, _why_fp32):
        part = sum(map(multiplications, ops)) / every
        yield Remark(
            "fp32-matmul",
            f"{several(ops)} ran in FP32, with {part:.0%} of the multiplications of the forward pass, because "
            f"{_why_fp32(ops[0])}.",
            tuple(op.number for op in ops),
            _fp32_advice(ops[0], xray),
        )


def _why_fp32(op: Op) -> str:
    if op.region is None:
        return "autocast is off there"
    if is_written_over(op):
        return "the in-place and out= forms have no rule: they take their dtype from what they write into"
    return op.reason or "autocast did not see it"


def _fp32_advice(op: Op, xray: XRay) -> str:
    if op.region is None:
        return (
            f"If its numbers fit into {dtype_in_words(xray.dtype)}, move it into the region, or run only the "
            "sensitive part (a softmax, a sum) in FP32. If they overflow, FP32 is right: keep it."
        )
    if is_written_over(op):
        return "Write the form that returns a new tensor: c = torch.addmm(c, a, b) instead of c.addmm_(a, b)."
    return "Look at where its arguments come from, and let autocast cast them."


def fp64_products(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Matrix products in FP64, which autocast leaves alone, and most GPUs do 32 to 64 times slower than FP32.

    x = torch.from_numpy(array)          # NumPy's floats are FP64
    x = torch.from_numpy(array).float()  # better
    """
    for ops in alike([op for op in flow.ops if is_matmul(op) and op.dtype == torch.float64 and not op.error]):
        yield Remark(
            "fp64-matmul",
            f"{several(ops)} ran in FP64: autocast leaves FP64 alone, and took {dtypes_of(ops[0].inputs)} as it is.",
            tuple(op.number for op in ops),
            _fp64_advice(ops[0]),
        )


def _fp64_advice(op: Op) -> str:
    named = next((each.name for each in op.inputs if each.dtype == torch.float64 and each.name), None)
    if named:
        return f"{named} is FP64 itself: take its module to FP32 with .float(), and what it is given, too."
    return (
        "Cast to FP32 where the tensor is made (arrays from NumPy and Python's float64 are the usual way in): "
        "torch.from_numpy(array).float()."
    )


def refused(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """An operator that autocast refuses, whatever it is given.

    p = torch.sigmoid(logits); F.binary_cross_entropy(p, y)  # refused: p in FP16 has lost what the loss needs
    F.binary_cross_entropy_with_logits(logits, y)            # better
    """
    for ops in alike([op for op in flow.ops if op.fate == Fate.REFUSED]):
        yield Remark(
            "refused",
            f'{several(ops)} is refused under torch.autocast("{xray.device_type}"): it raises an error.',
            tuple(op.number for op in ops),
            xray.explanation.advice
            if xray.explanation and ops[-1].error
            else "Use the form on logits (binary_cross_entropy_with_logits), or leave the region and cast to FP32 "
            "before.",
        )


def raises(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """An operator that raised because of its dtypes.

    with torch.autocast("cuda"): features = body(x)
    head(features)                                   # FP16 features, FP32 weights: an error
    head(features.float())                           # better, or put it into the region
    """
    for op in xray.ops:
        if op.error and op.fate != Fate.REFUSED and any(each in op.error for each in _ABOUT_DTYPES):
            yield Remark(
                "raises",
                f"{op_in_words(op)} {given_in_words(op)}, and raised {op.error.splitlines()[0]}",
                (op.number,),
                xray.explanation.advice
                if xray.explanation
                else "Cast its arguments to one dtype, or put it into the autocast region, which does that.",
            )


def half_parameters(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Parameters that are in 16 bits already, and are to be trained.

    model = Net().half()                       # GradScaler: "Attempting to unscale FP16 gradients"
    model = Net(); with torch.autocast("cuda"):  # better: FP32 weights, 16 bits where it is safe
    """
    for dtype in HALVES:
        ours = [each for each in xray.trainable if each.dtype == dtype]
        if not ours:
            continue
        name, used = dtype_in_words(dtype), {each.name for each in ours}
        yield Remark(
            "half-parameters",
            f"{len(ours):,} of {len(xray.trainable):,} trainable parameters are {name} already, {ours[0].name} first: "
            "their gradients and their updates are too, so that small updates are lost"
            + (", and GradScaler.unscale_ and .step raise an error." if dtype == torch.float16 else "."),
            tuple(op.number for op in flow.ops if any(each.name in used for each in op.inputs)),
            "Keep the parameters in FP32 (model.float(), no .half() or .bfloat16()); autocast makes the 16-bit copies.",
        )


CHECKS: Final[tuple[Callable[[XRay, Flow], Iterator[Remark]], ...]] = (
    refused,
    raises,
    half_parameters,
    there_and_back,
    cast_again,
    fp32_products,
    fp64_products,
    fp64_tensors,
    hard_coded,
    other_half,
    integers,
    lost_scalars,
    by_hand,
    narrowed,
    squares_by_hand,
    coarse_losses,
)


def remarks(xray: XRay) -> Remarks:
    """Ask all checks what they have to say about an x-ray."""
    flow = Flow(xray.ops)
    return Remarks(remark for check in CHECKS for remark in check(xray, flow))
