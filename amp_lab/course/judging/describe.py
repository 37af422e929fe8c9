"""A value in a few words, for a sentence to a learner.

The value may be an object of the learner's own class. So nothing here calls a method of it, not even `repr`: what it
is, is read from its type, and only types that we know are looked into.
"""

from __future__ import annotations

import decimal
import fractions
import itertools
import math
import sys
import types
from typing import Any

import numpy as np
import torch

NUMPY_INTEGERS = frozenset(kind for kind in np.sctypeDict.values() if issubclass(kind, np.integer))
NUMPY_FLOATS = frozenset(kind for kind in np.sctypeDict.values() if issubclass(kind, np.floating))
TENSORS = (torch.Tensor, torch.nn.Parameter)

_SHOWN = 6  # how many of a collection's elements are shown
_LONGEST = 160  # characters that a value takes in a sentence
_LONGEST_INT = 10**40

_NUMPY_SCALARS = frozenset(np.sctypeDict.values())
_PLAIN = (bool, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
)
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", torch.Size: "()", set: "{}", frozenset: "{}"}


def describe(value: Any) -> str:
    """Return what a value is and, as far as it is short, what is in it; runs no code of a learner's class."""
    text = _described(value, depth=0)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def kind(value: Any) -> str:
    """Return the type of a value with its article: `a tensor`, `an int`."""
    if type(value) in TENSORS:
        return "a tensor" if value.layout is torch.strided else "a sparse tensor"
    name = type.__getattribute__(type(value), "__name__")
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} `{name}`"


def exact(number: torch.Tensor) -> str:
    """Return the one number in a tensor with as many digits as tell it from its neighbours in that dtype."""
    value = number.item()
    # FP32 is written out too long by Python, whose floats have 64 bits; NumPy knows how many digits it needs.
    return repr(float(str(np.float32(value)))) if number.dtype == torch.float32 else repr(value)


def bits(number: torch.Tensor) -> str:
    """Return the bits of the one number in a tensor in hexadecimal: only they tell one NaN from another."""
    stored = number.detach().reshape(1).view(torch.uint8).tolist()
    return f"0x{int.from_bytes(bytes(stored), sys.byteorder):0{2 * len(stored)}X}"


def _described(value: Any, depth: int) -> str:
    type_ = type(value)
    if type_ in TENSORS:
        return _tensor(value.detach())
    if type_ in _BRACKETS and depth < 3:
        return _collection(value, _BRACKETS[type_], depth)
    if type_ is dict and depth < 3:
        inside = [
            f"{_described(key, depth + 1)}: {_described(item, depth + 1)}"
            for key, item in itertools.islice(value.items(), _SHOWN)
        ]
        return "{" + ", ".join(inside) + (", …}" if len(value) > _SHOWN else "}")
    if type_ is int:
        return repr(value) if abs(value) < _LONGEST_INT else "an `int` of more than 40 digits"
    if type_ in _PLAIN or type_ in _NUMPY_SCALARS:
        return repr(value[:_LONGEST] if type_ in (str, bytes) else value)
    if type_ is fractions.Fraction:
        return f"{_described(value.numerator, depth)}/{_described(value.denominator, depth)}"
    if type_ is decimal.Decimal:
        return str(value)
    if issubclass(
        type_, (float, int)
    ):  # of a class of the learner's: the number in it, asked of Python alone
        return float.__repr__(value) if issubclass(type_, float) else _described(int.__add__(value, 0), depth)
    if type_ is np.ndarray:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if type_ in _FUNCTIONS:
        return f"the function `{value.__name__}`"
    if issubclass(type_, type):
        return f"the class `{type.__getattribute__(value, '__name__')}`"
    return f"an object of type `{type.__getattribute__(type_, '__name__')}`"


def _collection(value: Any, brackets: str, depth: int) -> str:
    opening, closing = brackets[0], brackets[1]
    inside = [_described(item, depth + 1) for item in itertools.islice(iter(value), _SHOWN)]
    dots = ", …" if len(value) > _SHOWN else "," if closing == ")" and len(value) == 1 else ""
    return f"{opening}{', '.join(inside)}{dots}{closing}"


def _tensor(value: torch.Tensor) -> str:
    shape = f"shape {tuple(value.shape)}"
    if value.layout is not torch.strided or value.is_meta or value.is_nested or value.numel() == 0:
        return f"{kind(value)} of {shape}, {value.dtype}"
    numbers = ", ".join(map(_short, value.flatten()[:_SHOWN]))
    if value.numel() <= _SHOWN and value.dim() <= 1:
        return f"tensor({f'[{numbers}]' if value.dim() else numbers}, dtype={value.dtype})"
    dots = ", …" if value.numel() > _SHOWN else ""
    return f"a tensor of {shape}, {value.dtype}, with the values {numbers}{dots}"


def _short(number: torch.Tensor) -> str:
    """Return a number in at most six digits if they tell it from its neighbours, else with as many as do."""
    value = number.item()
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.6g}"
    stored = torch.tensor(float(text), dtype=number.dtype).item()
    return text if math.isnan(value) or stored == value else exact(number)
