"""Whole numbers that 16 bits cannot hold: positions and ids beyond their digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import torch

from amp_lab.autocast.hurts.flow import HALVES, Flow, base, numel, scalar
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

    It speaks only of what is known: a `torch.arange` that counts so far, or a `cumsum` of integers over so many.
    """
    for ops in alike([op for op in flow.ops if _counts_too_far(op, flow)]):
        found = _counts_too_far(ops[0], flow)
        assert found is not None
        counter, last, dtype = found
        name, exact = dtype_in_words(dtype), _EXACT[dtype]
        what = f"whole numbers up to {last:,} or more"
        if base(counter) == "cumsum":
            what = f"a running sum of {last:,} whole numbers"
        too_large = " From 65,520 on they are infinite." if dtype == torch.float16 and last >= 65520 else ""
        yield Remark(
            "integers-in-16-bits",
            f"{several(ops)} took {what} to {name}, which holds all of them only up to {exact:,}: {exact + 1:,} "
            f"becomes {exact:,}.{too_large}",
            tuple(sorted({counter.number, *(op.number for op in ops)})),
            "Keep positions and ids in integers or FP32 (inside the region with autocast switched off around the "
            "product), and cast what is computed from them, such as sines, which are small.",
        )


def _counts_too_far(op: Op, flow: Flow) -> tuple[Op, int, torch.dtype] | None:
    """Return an arange, the number that it reaches at least, and the 16 bits without it that an operator chose."""
    for value, dtype in _narrowed(op):
        counter, numbers = (op, numel(op.outputs[0])) if value is None else _counter(value, flow)
        if counter and base(counter) == "arange":
            numbers -= 1  # it begins with 0
        if counter and numbers > _EXACT[dtype]:
            return counter, numbers, dtype
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
    """Return the arange or cumsum that a value shows, through views and wider dtypes, and how many of its numbers.

    So many different whole numbers reach at least that far; a slice may show the small ones only. Of a cumsum it is
    how many numbers were added up.
    """
    numbers, moved = numel(value), False
    for each in flow.way_back(value):
        numbers = min(numbers, numel(each.outputs[0]))
        if base(each) == "arange":
            return (each if _by_ones(each) and not moved else None), numbers
        if base(each) == "cumsum" and _whole(each):
            return each, min(numbers, _added_up(each))
        if _whole(each) and base(each) in _POSITIONS:
            moved = True
        elif not each.view and not (is_cast(each) and each.outputs[0].dtype not in HALVES):
            break
    return None, 0


# What people do to a count of tokens to make positions of it: mask.cumsum(-1) - 1, or times the mask.
_POSITIONS: Final = frozenset("add sub mul masked_fill".split())


def _added_up(op: Op) -> int:
    """Return how many numbers a cumsum added up."""
    place = scalar(op, "dim")
    return op.inputs[0].shape[int(place)] if place is not None and op.inputs[0].shape else 0


def _whole(op: Op) -> bool:
    """Whether an operator computes with integers only."""
    values = (*op.inputs, *op.outputs)
    return bool(op.inputs) and not any(
        each.dtype.is_floating_point or each.dtype.is_complex for each in values
    )


def _by_ones(op: Op) -> bool:
    """Whether an arange counts in steps of one: integers do at least; of others, the line of code must say it."""
    if not op.outputs[0].dtype.is_floating_point:
        return True
    call = _ARANGE.search(op.source.text) if op.source else None
    if call is None:
        return False
    positional = [each for each in call[1].split(",") if each.strip() and "=" not in each]
    return len(positional) <= 2 and "step" not in call[1]
