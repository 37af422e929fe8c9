"""What a check expects of an answer, and how a surprise becomes a mistake with a name.

Exact type, dtype and shape come before values: nothing is broadcast or converted to make an answer look right. Types
are compared with `type`, not with `isinstance`, which would believe what a learner's class says of itself.
"""

from __future__ import annotations

import decimal
import fractions
import itertools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from amp_lab.course.judging.describe import NUMPY_FLOATS, NUMPY_INTEGERS, TENSORS, describe, exact, kind

Misconceptions = Sequence[tuple[str, Callable[..., Any]]]
Otherwise = Callable[[Sequence["Trial"]], None]

_CALL_IT = "Is a pair of parentheses missing after its name?"
_FLOAT = (
    "A float came in on the way: `/` always makes one (`//` does not), and so does the product of no numbers at all "
    "in NumPy and PyTorch."
)
_COMPLEX = "In Python, a negative number to a power that is no whole number is complex."
_EXACT = "`float(...)` makes a plain `float` of it."
_WHOLE = "`int(...)` makes a plain `int` of it."
_ITEM = "`.item()` takes the number out of what holds just one."
_ADVICE: dict[type, str] = {
    types.GeneratorType: "A function with `yield` in it returns a generator: write `return`.",
    types.CoroutineType: "A function that begins with `async` returns a coroutine: write plain `def`.",
    types.FunctionType: _CALL_IT,
    types.BuiltinFunctionType: _CALL_IT,
    types.MethodType: _CALL_IT,
}
_ON_NUMBERS: dict[type, str] = _ADVICE | {
    bool: "A comparison gives `True` or `False`, not a number.",
    torch.Tensor: "Reduce it to the one number that is asked for.",
}
_ON_WHOLE_NUMBERS = _ON_NUMBERS | {float: _FLOAT, np.float64: _FLOAT, np.float32: _FLOAT}
_ON_FLOATS = _ON_NUMBERS | {
    complex: _COMPLEX,
    np.complex128: _COMPLEX,
    fractions.Fraction: _EXACT,
    decimal.Decimal: _EXACT,
}
_ON_TENSORS = _ADVICE | {
    np.ndarray: "`torch.from_numpy(...)` makes a tensor of an array.",
    list: "`torch.tensor(...)` makes a tensor of a list.",
}


class Mistake(Exception):
    """Raised in a check: the answer shows the misconception `diagnosis`; `observed` fills its sentence."""

    def __init__(self, diagnosis: str, **observed: object) -> None:
        super().__init__(diagnosis)
        self.diagnosis = diagnosis
        self.observed = observed


@dataclass(frozen=True)
class Trial:
    """One call of the learner's function: how it was called, what came back, what is right."""

    call: str
    args: tuple[Any, ...]
    got: Any
    want: Any


class Region(NamedTuple):
    """Cases that show the same ideas: subnormals, say, or ties."""

    cases: tuple[tuple[Any, ...], ...]
    misconceptions: Misconceptions
    otherwise: Otherwise = lambda trials: None


def region_by_region(regions: Sequence[Region]) -> Otherwise:
    """Return what judges the trials of all cases of `regions`, in their order, one region after the other.

    An answer with two things wrong shows neither of them purely. So each region has its own misconceptions, the
    plainest region comes first, and the next one counts only when that is right.
    """

    def judge(trials: Sequence[Trial]) -> None:
        rest = iter(trials)
        for region in regions:
            own = list(itertools.islice(rest, len(region.cases)))
            recognise(own, region.misconceptions, otherwise=region.otherwise)

    return judge


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are the same, where NaN is the same as NaN and 0.0 is not the same as -0.0.

    An int is the same as a float of its value; tensors must have one dtype, shape, layout and device; tuples are
    compared in depth.
    """
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        kinds = [(each.dtype, each.shape, each.layout, each.device) for each in (one, other)]
        return kinds[0] == kinds[1] and bool(_alike_values(one, other).all())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and one != one:
        return bool(other != other)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)) and one == 0 == other:
        return math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def recognise(
    trials: Sequence[Trial],
    misconceptions: Misconceptions,
    *,
    otherwise: Otherwise = lambda trials: None,
) -> None:
    """Raise `Mistake` unless every trial is right, which means `alike`.

    A misconception is recognised by doing what somebody who has it would do: it is a pair of a diagnosis id and a
    function of the same arguments, and it is the one if it gives exactly what the learner's code gave in every trial.
    If none does, `otherwise` may raise what it can make of the trials; at last the first wrong one is shown as it is.
    """
    if all(alike(trial.got, trial.want) for trial in trials):
        return
    shown = first_wrong(trials)
    for diagnosis, answer in misconceptions:
        if all(alike(trial.got, answer(*trial.args)) for trial in trials):
            raise Mistake(diagnosis, **shown)
    otherwise(trials)
    raise Mistake("wrong-value", **shown)


def first_wrong(trials: Sequence[Trial]) -> dict[str, str]:
    """Return what a sentence shows, `call`, `got` and `want`, of the first trial that can be seen to be wrong."""
    trial = next(trial for trial in trials if not alike(trial.got, trial.want))
    return {"call": trial.call, "got": describe(trial.got), "want": describe(trial.want)}


def whole_number(call: str, got: Any, want: int | None) -> int:
    """Return `got` as an int, or raise `Mistake` if it is anything but a whole number of Python or NumPy.

    `want` is None where more than one number is right.
    """
    if type(got) is int:
        return got
    if type(got) in NUMPY_INTEGERS:
        return int(got)
    here = "" if want is None else f", here {want}"
    _refuse_number(call, got, f"a whole number (`int`){here}", _ON_WHOLE_NUMBERS, _WHOLE)


def number(call: str, got: Any, want: float) -> float:
    """Return `got` as a number of Python, or raise `Mistake` if it is anything but a number of Python or NumPy.

    An int is a number, too, and stays an int: Python compares it with a float exactly.
    """
    if type(got) is float or type(got) is int:
        return got
    if type(got) in NUMPY_INTEGERS:
        return int(got)
    if type(got) in NUMPY_FLOATS:
        return float(got)
    _refuse_number(call, got, f"a number (`float`), here {want}", _ON_FLOATS, _EXACT)


def tensor(call: str, got: Any, want: torch.Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Raise `Mistake` unless `got` is a tensor with the dtype, shape, device and values of `want`.

    Floating-point values may differ by `atol + rtol * |want|`, compared in FP64; all others must be equal. NaN is right
    only where `want` is NaN, infinity only where `want` is the same infinity; 0.0 and -0.0 are equal.
    """
    wide_got, wide_want = _widened(tensor_like(call, got, want)), _widened(want)
    if not torch.isfinite(wide_got).all() and torch.isfinite(wide_want).all():
        raise Mistake("not-finite", call=call, got=describe(got), want=describe(want))
    if wide_got.is_floating_point():
        near = torch.isclose(wide_got, wide_want, rtol, atol, equal_nan=True)
    else:
        near = wide_got == wide_want
    if not near.all():
        raise Mistake("wrong-element", call=call, **_worst(got.detach(), want, wide_got - wide_want, near))


def tensor_like(call: str, got: Any, want: torch.Tensor) -> torch.Tensor:
    """Return `got` without its history, or raise `Mistake` unless it is a tensor like `want`: device, dtype, shape."""
    if type(got) not in TENSORS or got.layout != want.layout or got.is_nested:
        _refuse_type(call, got, f"a tensor of dtype `{want.dtype}`", _ON_TENSORS)
    for diagnosis, seen, right in (
        ("wrong-device", got.device.type, want.device.type),
        ("wrong-dtype", got.dtype, want.dtype),
        ("wrong-shape", tuple(got.shape), tuple(want.shape)),
    ):
        if seen != right:
            raise Mistake(diagnosis, call=call, got=seen, want=right)
    return got.detach()  # type: ignore[no-any-return]


def _alike_values(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one, other = _widened(one), _widened(other)
    if not one.is_floating_point():
        return one == other
    return (one == other) & (one.signbit() == other.signbit()) | one.isnan() & other.isnan()


def _worst(
    got: torch.Tensor, want: torch.Tensor, difference: torch.Tensor, near: torch.Tensor
) -> dict[str, object]:
    """Say where a tensor is most wrong: two tensors that differ in their last bit look alike in short."""
    size = difference.abs().double().nan_to_num(nan=torch.inf).masked_fill(near, -1.0)
    flat = int(size.argmax())
    index = tuple(int(number) for number in torch.unravel_index(torch.tensor(flat), want.shape))
    return {
        "got": exact(got.flatten()[flat]),
        "want": exact(want.flatten()[flat]),
        "place": f" at index {index}" if index else "",
        "share": f"{int((~near).sum())} of {near.numel()}",
    }


def _refuse_number(call: str, got: Any, want: str, advices: Mapping[type, str], plain: str) -> NoReturn:
    one_in_tensor = type(got) in TENSORS and got.layout is torch.strided and got.numel() == 1
    one_in_array = type(got) is np.ndarray and got.size == 1
    if one_in_tensor or one_in_array:
        advices = {type(got): _ITEM}
    elif issubclass(type(got), (int, float)) and type(got) not in advices:
        advices = {type(got): plain}
    _refuse_type(call, got, want, advices)


def _refuse_type(call: str, got: Any, want: str, advices: Mapping[type, str]) -> NoReturn:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want=want)
    advice = advices.get(type(got), "Which step made it something else?")
    if type(got) is types.CoroutineType:
        got.close()  # it will never be awaited, and Python would complain of that in the middle of the page
    raise Mistake("wrong-type", call=call, got=describe(got), kind=kind(got), want=want, advice=advice)


def _widened(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return value.double() if value.is_floating_point() else value
