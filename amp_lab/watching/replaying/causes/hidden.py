"""An infinity that vanishes inside the model: the loss is finite, and wrong."""

from __future__ import annotations

from typing import Final

from amp_lab.watching.replaying.causes.case import Case, Verdict
from amp_lab.watching.replaying.causes.words import NO_SCALE, limit_of, numbers, row_in_words
from amp_lab.watching.replaying.flow import Flow, infinite
from amp_lab.watching.replaying.records import Traced

# What takes an infinity as a large number, and is right about it. -inf is how scores are masked.
_EITHER: Final = frozenset(
    "where masked_fill masked_scatter clamp clip nan_to_num hardtanh relu6 tanh sigmoid hardsigmoid sign argmax argmin "
    "topk sort isfinite isinf isnan isposinf isneginf eq ne gt ge lt le logical_not index_select atan erf softsign "
    "log_sigmoid logsigmoid softplus".split()
)
_MINUS: Final = frozenset(
    "softmax log_softmax logsumexp scaled_dot_product_attention exp exp2 expm1 relu maximum max amax clamp_min elu "
    "selu celu leaky_relu gelu silu logaddexp cumsum".split()
)
_PLUS: Final = frozenset(["minimum", "min", "amin", "clamp_max", "rrelu"])
# What masks by itself: its infinity is meant.
_MEANT: Final = frozenset(
    "masked_fill where full full_like new_full fill triu tril zeros_like masked_scatter".split()
)
_MASK: Final = -1e4


def hidden_overflow(case: Case) -> Verdict | None:
    """An operator made infinity of finite numbers, and a later one made finite numbers of that: x / inf is 0."""
    if case.forward_bad or case.trace is None:
        return None
    found = [(row, by) for row in case.flow.forward if (by := hidden(case.flow, row)) is not None]
    if not found:
        return None
    row, by = found[0]
    gave, then = "gave", f"Then {row_in_words(by)} took that infinity"
    if by is row:
        gave, then = "on the way had", "That infinity was lost inside it,"
    lost = not case.finite and case.cure is None
    wrong = "wrong, and its gradients are not finite" if lost else "wrong"
    return Verdict(
        "hidden-overflow",
        f"In the forward pass, {row_in_words(row)} {numbers(row, gave)}. {then} "
        f"and finite numbers came out: the loss is finite, but {wrong}. No message tells of it. {NO_SCALE}",
        "Compute this part in FP32: .float() on what goes in, inside torch.autocast(..., enabled=False). (Squares, "
        "sums of squares and variances leave FP16 from numbers around 256 on.) Or use PyTorch's own layer "
        "(nn.LayerNorm, nn.RMSNorm), which computes in FP32 inside; or BF16.",
        "forward",
        row,
        others=tuple(each for each, _ in found[1:]),
    )


def hidden(flow: Flow, row: Traced) -> Traced | None:
    """Return the row that makes finite numbers of an infinity which this row makes; None where that does no harm."""
    name = row.op.name.rstrip("_")
    if _inside(row):
        return row
    if not row.makes_it or not infinite(row) or name in _MEANT or _masks(row):
        return None
    return _absorber(flow, row)


def _inside(row: Traced) -> bool:
    """Whether an operator of several kernels made infinity in one of them, and finite results of it in a later one."""
    limit = limit_of(row)
    if row.truth is None or limit is None or not row.outputs or _right(row, True, True):
        return False
    return row.truth.size > limit and all(each.finite for each in (*row.inputs, *row.outputs))


def _masks(row: Traced) -> bool:
    """Whether a row adds a mask, such as that of the most negative number: only -inf comes of it."""
    minus = not any(each.positive or each.nan for each in row.outputs)
    return (
        minus
        and any(each.smallest <= _MASK for each in row.inputs)
        and row.op.name in ("add", "sub", "to", "mul")
    )


def _absorber(flow: Flow, row: Traced) -> Traced | None:
    """Follow infinities from row to row, to one that reads them, gives finite numbers, and is not right about it."""
    waiting, met = [row], {row.op.number}
    while waiting:
        made = waiting.pop()
        onward = []
        for reader in flow.readers.get(made.op.number, ()):
            if reader.op.number in met or reader.op.phase != "forward":
                continue
            met.add(reader.op.number)
            read = [each for each in reader.inputs if each.made_by == made.op.number]
            if _right(reader, any(each.positive for each in read), any(each.negative for each in read)):
                continue
            if not all(each.finite for each in reader.outputs):
                onward.append(reader)
            elif reader.outputs and not reader.op.view:
                return reader
        waiting += reversed(onward)
    return None


def _right(reader: Traced, positive: bool, negative: bool) -> bool:
    """Whether an operator that is given these infinities gives what it would give for large numbers."""
    name = reader.op.name.rstrip("_")
    if name in _EITHER:
        return True
    return (not positive and name in _MINUS) or (not negative and name in _PLUS)
