"""What the operators before a number say about its sign, whatever the numbers are: enough to know that e^x is small."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.hurts.flow import Flow, base, scalar
from amp_lab.autocast.records import Op, Value
from amp_lab.autocast.report.summary import is_cast

_FAR: Final = 12  # operators to look back
_SMALL: Final = frozenset(
    "log_softmax logsigmoid log_sigmoid_forward tanh sin cos erf sigmoid softmax".split()
)
_POSITIVE: Final = frozenset(
    "abs square relu relu6 softplus sigmoid exp softmax norm linalg_vector_norm cdist arange var std".split()
)
_LARGEST: Final = frozenset("max amax logsumexp".split())
_SAME_SIGN: Final = frozenset("sum mean clone contiguous detach dropout native_dropout".split())
_MOST: Final = 11.0  # e^11 is a number in FP16


def is_small(value: Value, flow: Flow, far: int = _FAR) -> bool:
    """Return whether no number of a tensor is above 11, as far as that is sure: x - x.max(), -x², a clamp."""
    op = flow.maker(value)
    if op is None or not far:
        return False
    name, number = base(op), scalar(op, "other")
    if name in _SMALL or _less_its_largest(op, flow):
        return True
    if name in ("clamp", "clamp_max") and (most := scalar(op, "max")) is not None:
        return most <= _MOST
    if name == "neg":
        return is_positive(op.inputs[0], flow, far - 1)
    if name in ("mul", "div") and number is not None:
        look = is_small if number > 0 else is_positive
        return look(op.inputs[0], flow, far - 1) and (look is is_positive or _shrinks(name, number))
    return _passes_on(op) and is_small(op.inputs[0], flow, far - 1)


def is_positive(value: Value, flow: Flow, far: int = _FAR) -> bool:
    """Return whether no number of a tensor is negative, as far as that is sure."""
    op = flow.maker(value)
    if op is None or not far:
        return False
    name, number = base(op), scalar(op, "other")
    if name in _POSITIVE or (name == "pow" and (scalar(op, "exponent") or 1) % 2 == 0):
        return True
    if name == "mul" and len(op.inputs) == 2:
        return op.inputs[0] == op.inputs[1]
    if name in ("mul", "div", "add") and number is not None:
        return number > 0 and is_positive(op.inputs[0], flow, far - 1)
    return (_passes_on(op) or name in _SAME_SIGN) and is_positive(op.inputs[0], flow, far - 1)


def _shrinks(name: str, number: float) -> bool:
    return number <= 1 if name == "mul" else number >= 1


def _passes_on(op: Op) -> bool:
    return bool(op.inputs) and (is_cast(op) or base(op) in ("clone", "contiguous", "detach"))


def _less_its_largest(op: Op, flow: Flow) -> bool:
    """Whether an operator subtracts from a tensor the largest of its numbers."""
    if base(op) != "sub" or len(op.inputs) != 2:
        return False
    largest = _before(op.inputs[1], flow)
    return (
        largest is not None
        and base(largest) in _LARGEST
        and bool(largest.inputs)
        and flow.root(largest.inputs[0]) == flow.root(op.inputs[0])
    )


def _before(value: Value, flow: Flow) -> Op | None:
    """Return who made a value, looking through what only hands it on."""
    op = flow.maker(value)
    while op is not None and _passes_on(op):
        op = flow.maker(op.inputs[0])
    return op
