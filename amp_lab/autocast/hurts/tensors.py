"""Tensors that the model's code makes in a dtype of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.hurts.flow import HALVES, Flow, base, is_factory
from amp_lab.autocast.hurts.remarks import Remark, alike, several
from amp_lab.autocast.records import Op, Value
from amp_lab.autocast.report.summary import is_cast, written
from amp_lab.autocast.report.words import (
    bytes_in_words,
    dtype_in_words,
    dtypes_of,
    op_in_words,
    place_in_words,
)

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

_TO_FP32 = (Fate.FP32, Fate.FP32_UNLESS)


def fp64_tensors(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """An FP64 tensor that takes a 16-bit path to FP64, which most GPUs do 32 to 64 times slower than FP32.

    h = h + torch.from_numpy(np.linspace(0, 1, 64))          # NumPy's floats are FP64
    h = h + torch.from_numpy(np.linspace(0, 1, 64)).to(h)    # better: the dtype and the device of h
    """
    widened = [op for op in flow.ops if _widens(op, torch.float64)]
    for ops in alike(widened, lambda op: _origin(_wide(op, torch.float64), flow)):
        value = _wide(ops[0], torch.float64)
        halves = dtypes_of(each for each in ops[0].inputs if each.dtype in HALVES)
        yield Remark(
            "fp64-tensor",
            f"{several(ops)} turned {halves} into FP64, which autocast leaves alone, because of "
            f"{_origin(value, flow)}.",
            tuple(op.number for op in ops),
            "Cast it where it comes in: torch.from_numpy(array).to(h), module.float() for buffers and parameters.",
        )


def _origin(value: Value, flow: Flow) -> str:
    """Say where a tensor came from."""
    dtype, root = dtype_in_words(value.dtype), flow.root(value)
    made = flow.maker(root)
    while made is not None and made.inputs and _copies(made):
        root = flow.root(made.inputs[0])
        made = flow.maker(root)
    if root.name:
        return f"{root.name}, which is {dtype}"
    if made is None or base(made) in _CAME_IN:
        return (
            f"an {dtype} tensor that was not computed here: from NumPy, whose floats are FP64, an argument, or an "
            "attribute"
        )
    return f"an {dtype} tensor from {op_in_words(made)}"


def _copies(op: Op) -> bool:
    """Whether an operator hands on its first argument in its dtype, to another device perhaps."""
    return base(op) in ("to", "clone", "detach") and op.inputs[0].dtype == op.outputs[0].dtype


# What a tensor passes when Python hands it to PyTorch: torch.tensor, torch.from_numpy.
_CAME_IN: Final = ("lift_fresh", "lift_fresh_copy")


def _wide(op: Op, dtype: torch.dtype) -> Value:
    return next(each for each in op.inputs if each.dtype == dtype and each.shape)


def _widens(op: Op, dtype: torch.dtype) -> bool:
    """Whether an operator without a rule of its own took 16 bits to a wider dtype, since another tensor has that."""
    if op.view or op.fate not in (None, Fate.FOLLOWS, Fate.WIDEST) or not op.outputs or is_factory(op):
        return False
    if op.outputs[0].dtype != dtype or not any(_halves_with_dimensions(op)):
        return False
    return any(each.dtype == dtype and each.shape for each in op.inputs)


def hard_coded(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """A tensor made in FP32 in the forward pass that takes a 16-bit path to FP32.

        h = linear(x)                     # FP16
        h = h + torch.zeros(h.shape)      # FP16 with FP32 gives FP32, and so does all that follows
        h = h + torch.zeros_like(h)       # better: the dtype of what it meets
        h = h + torch.zeros(h.shape, dtype=h.dtype, device=h.device)

    Not reported: one without dimensions, which widens nothing, and where FP32 comes next in any case (a softmax).
    """
    makers = _made_here(flow)
    for ops in alike([op for op in flow.ops if _widened(op, makers, flow)]):
        made = _widened(ops[0], makers, flow)
        assert made is not None
        extra = sum(written(op) for op in ops) // 2
        yield Remark(
            "hard-coded-dtype",
            f"{_made(made)}; with it, "
            f"{several(ops)} turned {dtypes_of(each for each in ops[0].inputs if each.dtype in HALVES)} into "
            f"{dtype_in_words(ops[0].outputs[0].dtype)}, which takes {bytes_in_words(extra)} more.",
            tuple(sorted({made.number, *(op.number for op in ops)})),
            "Make it in the dtype of what it meets: torch.zeros_like(h), or dtype=h.dtype, device=h.device.",
        )


def _made(op: Op) -> str:
    """Say who made an FP32 tensor, and why in FP32."""
    if base(op) in _CAME_IN:
        place = place_in_words(op.source)
        return f"an FP32 tensor came in{f' at {place}' if place else ''} (torch.tensor, torch.from_numpy)"
    asked = f" as its line asks ({op.source.text.strip()})" if op.source and "dtype" in op.source.text else ""
    return f"{op_in_words(op)} made an FP32 tensor{asked or _DEFAULT}"


_DEFAULT: Final = " (PyTorch's default dtype, where the call names none)"


def _made_here(flow: Flow) -> dict[int, Op]:
    """Return the operators that made wide tensors from nothing but other such tensors, with the first maker of each."""
    makers: dict[int, Op] = {}
    for op in flow.ops:
        if not op.outputs or op.outputs[0].dtype != torch.float32 or hasattr(nn, op.module_type):
            continue  # what PyTorch's own modules make, such as the first state of an LSTM, is not the user's to change
        floats = [each for each in op.inputs if each.dtype.is_floating_point]
        if is_factory(op):
            makers[op.number] = op
        elif floats and all(each.made_by in makers for each in floats):
            makers[op.number] = makers[next(each.made_by for each in floats if each.made_by is not None)]
    return makers


def _widened(op: Op, makers: dict[int, Op], flow: Flow) -> Op | None:
    """Return who made the FP32 tensor that took this operator from 16 bits to FP32; None if nothing did."""
    if not _widens(op, torch.float32):
        return None
    wide = [each for each in op.inputs if each.dtype == torch.float32 and each.shape]
    if not all(each.made_by in makers for each in wide):
        return None
    readers = list(flow.readers(op))
    if readers and all(reader.fate in _TO_FP32 for reader in readers):
        return None
    return next(makers[each.made_by] for each in wide if each.made_by is not None)


def _halves_with_dimensions(op: Op) -> Iterator[bool]:
    yield from (each.dtype in HALVES and bool(each.shape) for each in op.inputs)


def other_half(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """A tensor in the other 16-bit dtype than the region's.

    with torch.autocast("cuda", torch.bfloat16):
        h = x.half()      # FP16 in a BF16 region: large numbers overflow, and torch.cat raises
        h = x             # better: let autocast cast
    """
    found = [
        op
        for op in flow.ops
        if op.region in HALVES
        and (is_factory(op) or is_cast(op))
        and not hasattr(nn, op.module_type)  # PyTorch's own code
        and any(each.dtype in HALVES and each.dtype != op.region for each in op.outputs)
    ]
    for ops in alike(found):
        region, dtype = dtype_in_words(ops[0].region), dtype_in_words(ops[0].outputs[0].dtype)
        yield Remark(
            "other-16-bit-type",
            f"{several(ops)} made an {dtype} tensor in a {region} region.",
            tuple(op.number for op in ops),
            f"Leave the cast to autocast, or take the dtype from a tensor (h.dtype) or from the region "
            f'(torch.get_autocast_dtype("{xray.device_type}")). Operators that take the widest of their inputs, such '
            f"as torch.cat, refuse FP16 in a BF16 region and BF16 in an FP16 one.",
        )
