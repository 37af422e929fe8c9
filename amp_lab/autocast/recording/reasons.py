"""Why an operator ran in the dtype it ran in: one plain sentence for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Cast, Value
from amp_lab.autocast.report.words import dtype_in_words


def of_autocast(
    fate: Fate,
    device: str,
    inputs: Sequence[Value],
    casts: Sequence[Cast],
    dtype: torch.dtype | None,
    passed: torch.dtype | None,
) -> str:
    """Say what autocast did to an operator that it has a rule for.

    `dtype` is what it computed in, `passed` the one that the call asked for as its argument `dtype`.
    """
    where = {"cuda": "CUDA", "cpu": "the CPU"}.get(device, device)
    name = dtype_in_words(dtype)
    match fate:
        case Fate.LOWER if casts:
            return f"autocast casts it to {name}: on {where}'s lower-precision list"
        case Fate.LOWER:
            return f"{_as_it_came(inputs)}: on {where}'s lower-precision list, but there is nothing to cast"
        case Fate.FP32 if casts:
            return f"autocast casts it to FP32: on {where}'s FP32 list"
        case Fate.FP32:
            return f"{_as_it_came(inputs)}: on {where}'s FP32 list, but there is nothing to cast"
        case Fate.FP32_UNLESS if passed is not None:
            return f"{name}: the call passes dtype={passed}; without one, {where}'s rule is FP32"
        case Fate.FP32_UNLESS if _for_autocast(inputs[:1]):
            return f"autocast asks it for FP32: {where}'s rule is FP32 unless a dtype is passed, and none is"
        case Fate.FP32_UNLESS if not _floats(inputs):
            return _without_floats(inputs, ())
        case Fate.FP32_UNLESS:
            return f"{_as_it_came(inputs)}: autocast leaves {_list(_dtypes(inputs))} alone"
        case Fate.WIDEST if casts:
            return f"autocast casts to the widest of its inputs: of {_list(_floats(inputs))}, that is {name}"
        case Fate.WIDEST:
            return f"{_as_it_came(inputs)}: cast to the widest of its inputs, which are the same"
        case Fate.REFUSED:
            return f"autocast refuses it on {where}: its result would not be safe in 16 bits"
        case _:
            return without_rule(inputs, (), dtype, passed)


def without_rule(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    dtype: torch.dtype | None,
    passed: torch.dtype | None,
) -> str:
    """Say what decided about an operator that autocast has no rule for, in a region; see `of_autocast`."""
    floats = _floats(inputs)
    if not floats:
        return _without_floats(inputs, outputs)
    if passed is not None:
        return f"no rule of autocast: {_list(floats)} comes in, and the call passes dtype={passed}"
    if len(floats) == 1:
        return f"follows its inputs: {floats[0]}"
    return f"no rule of autocast: PyTorch computes {_list(floats)} together in {dtype_in_words(dtype)}"


def off(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Say what decided about an operator outside autocast's regions."""
    floats = _floats(inputs)
    if not floats:
        return f"autocast is off here; {_without_floats(inputs, outputs)}"
    return f"autocast is off here: {_list(floats)} as it came"


def of_to(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Say what a change of dtype in the user's code does."""
    before, after = _list(_dtypes(inputs)), _list(_dtypes(outputs))
    if before == after:
        return f"a copy that the code asks for, in {after}"
    return f"a cast that the code asks for, from {before} to {after}"


def of_view(inputs: Sequence[Value]) -> str:
    """Say that nothing was computed."""
    return f"a view: the same numbers, {_list(_dtypes(inputs[:1])) or 'none'}"


def of_backward(name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Say what decides in a backward pass, where autocast is off."""
    gradient = _list(_floats(outputs)) or _list(_floats(inputs))
    return f"backward of {name}: it computes in the dtypes of its forward pass, and gives {gradient or 'no gradient'}"


def of_cast_backward(name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Say what happens to a gradient where autocast had cast an argument."""
    before, after = _list(_floats(inputs)), _list(_floats(outputs))
    return f"backward of autocast's cast before {name}: the gradient goes from {before} back to {after}"


def of_engine(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Say what autograd does with the gradients that a custom function's backward returns."""
    before, after = _list(_floats(inputs)), _list(_floats(outputs))
    if before == after:
        return f"autograd adds gradients up, in {after}"
    return f"autograd casts the gradient from {before} to {after}, the dtype of the tensor that it is of"


def of_accumulation(name: str | None, dtype: torch.dtype | None) -> str:
    """Say what the end of a backward pass does."""
    owner = name or "a tensor that is no parameter of the model"
    return f"the gradient of {owner} is kept in {dtype_in_words(dtype)}, the dtype of the tensor"


def _for_autocast(values: Iterable[Value]) -> bool:
    """Whether autocast does anything about tensors of such dtypes: floating-point ones, but for FP64."""
    return any(value.dtype.is_floating_point and value.dtype is not torch.float64 for value in values)


def _as_it_came(inputs: Sequence[Value]) -> str:
    return f"{_list(_floats(inputs)) or 'no floating-point numbers'} as it came"


def _without_floats(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    floats = _list(_floats(outputs))
    if not inputs and floats:
        return f"made in {floats}: nothing comes in that could be cast"
    return f"integers or booleans come in, {floats} goes out" if floats else "no floating-point numbers"


def _floats(values: Iterable[Value]) -> list[str]:
    return _dtypes(value for value in values if value.dtype.is_floating_point or value.dtype.is_complex)


def _dtypes(values: Iterable[Value]) -> list[str]:
    return list(dict.fromkeys(dtype_in_words(value.dtype) for value in values))


def _list(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
