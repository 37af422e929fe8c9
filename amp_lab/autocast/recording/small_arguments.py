"""Small, real arguments for an operator, in the place of large or fake ones."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch.utils._mode_utils import no_dispatch

LARGEST_HALF: Final = 65504.0  # no larger number fits in FP16

Call = tuple[list[Any], dict[str, Any]]


class Unsuited(Exception):
    """No small copy can be made of an argument."""


class Small:
    """A call of an operator, with every size cut to `most`.

    Tensors become CPU tensors of ones, and of zeros where they hold integers, which may be indices. Numbers that the
    operator computes with stay; all other whole numbers may be sizes, and are cut as sizes are.

    Attributes:
        signature: calls with the same one are the same call.
        floats: the floating-point dtypes in it, in order.

    Raises:
        Unsuited: if a tensor is sparse or quantized. Other errors are what asking a nested one for its shape raises.
    """

    def __init__(
        self, func: torch._ops.OpOverload, args: Iterable[Any], kwargs: Mapping[str, Any], most: int
    ) -> None:
        numbers = _numbers(func)
        self._args = [_planned(value, most, at in numbers) for at, value in enumerate(args)]
        self._kwargs = {name: _planned(value, most, name in numbers) for name, value in kwargs.items()}
        if func.overloadpacket in _WRITE_AT_INDICES and len(self._args) > 2:
            self._args[1] = _masks_that_fit(self._args[1], self._args[2])
        self.signature: Hashable = (func, tuple(self._args), tuple(self._kwargs.items()))
        parts = list(_parts((*self._args, *self._kwargs.values())))
        dtypes = dict.fromkeys(dtype for part in parts if (dtype := _dtype(part)) is not None)
        self.floats = [dtype for dtype in dtypes if dtype.is_floating_point]
        self._has_integers = len(self.floats) < len(dtypes)
        self._has_large = any(isinstance(part, _Tensor | _Number) and _is_large(part.value) for part in parts)

    @property
    def is_suspicious(self) -> bool:
        """Whether an operator can object to a dtype here, or to a number that is large for a dtype."""
        return bool(self.floats) and (len(self.floats) > 1 or self._has_integers or self._has_large)

    def arguments(self) -> Call:
        """Make the arguments."""
        return self._made(None)

    def harmless(self) -> Iterator[Call]:
        """Make the call without what an operator could object to: one dtype throughout, and small numbers.

        There may be several ways: one for each dtype, and one that turns integers into floating-point numbers.
        """
        if len(self.floats) > 1 or self._has_large:
            yield from map(self._made, self.floats)
        if len(self.floats) == 1 and self._has_integers:
            yield self._made(self.floats[0], integers_too=True)

    def _made(self, dtype: torch.dtype | None, integers_too: bool = False) -> Call:
        args = [_made(part, dtype, integers_too) for part in self._args]
        return args, {name: _made(part, dtype, integers_too) for name, part in self._kwargs.items()}


class _Tensor(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    value: float  # of all its elements


class _Number(NamedTuple):
    value: float


class _Mask(NamedTuple):
    """An index of true and false, the first ones true."""

    shape: tuple[int, ...]
    true: int


_WRITE_AT_INDICES: Final = (torch.ops.aten.index_put, torch.ops.aten.index_put_)


def _masks_that_fit(indices: tuple[Any, ...], values: _Tensor) -> tuple[Any, ...]:
    """In `x[mask] = values` there are as many values as true elements, and both were cut."""
    return tuple(
        _Mask(each.shape, values.shape[at] if at < len(values.shape) else 1)
        if isinstance(each, _Tensor) and each.dtype is torch.bool
        else each
        for at, each in enumerate(indices)
    )


@cache
def _numbers(func: torch._ops.OpOverload) -> frozenset[int | str]:
    """The arguments that are numbers to compute with, by place and by name."""
    found = [
        (at, argument.name)
        for at, argument in enumerate(func._schema.arguments)
        if "number" in str(argument.type) or "float" in str(argument.type)
    ]
    return frozenset(key for pair in found for key in pair)


def _planned(value: Any, most: int, is_number: bool) -> Any:
    """Describe what will stand for an argument, in a form that can be hashed."""
    match value:
        case torch.Tensor():
            return _planned_tensor(value, most)
        case list() | tuple():
            return tuple(_planned(each, most, is_number) for each in value)
        case torch.device():
            return torch.device("cpu")
        case torch.Generator():
            return None
        case bool():
            return value
        case int() | float() if is_number:
            return _Number(value)
        case int() | torch.SymInt():
            return min(_size(value), most)
    return value


def _planned_tensor(tensor: torch.Tensor, most: int) -> _Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Unsuited(f"a sparse or quantized tensor: {tensor.layout}, {tensor.dtype}")
    shape = tuple(min(_size(size), most) for size in tensor.shape)
    value = float(tensor.dtype.is_floating_point or tensor.dtype is torch.bool)
    # A fake tensor remembers the number that `torch.tensor(-1e9)` made it of.
    constant = getattr(tensor, "constant", None) if not shape else None
    if constant is not None:
        with no_dispatch():  # private, and the way FakeTensor itself reads it: no mode must see it
            value = constant.item()
    return _Tensor(tensor.dtype, shape, value)


def _size(size: int | torch.SymInt) -> int:
    """A size that depends on values, as the number of true elements of a mask, is taken for 1."""
    return size if isinstance(size, int) else size.node.hint or 1


def _parts(planned: Any) -> Iterator[Any]:
    for part in planned:
        if type(part) is tuple:
            yield from _parts(part)
        else:
            yield part


def _dtype(part: Any) -> torch.dtype | None:
    dtype = part.dtype if isinstance(part, _Tensor) else part
    return dtype if isinstance(dtype, torch.dtype) and dtype is not torch.bool else None


def _is_large(number: Any) -> bool:
    return isinstance(number, int | float) and abs(number) > LARGEST_HALF


def _made(part: Any, dtype: torch.dtype | None, integers_too: bool) -> Any:
    """Make an argument; if a dtype is given, a harmless one of that dtype."""
    match part:
        case _Tensor():
            new = _changed(part.dtype, dtype, integers_too)
            value = (
                1.0 if new is not part.dtype or (dtype is not None and _is_large(part.value)) else part.value
            )
            return torch.full(part.shape, value, dtype=new)
        case _Mask():
            return (torch.arange(math.prod(part.shape)) < part.true).view(part.shape)
        case _Number():
            return 1.0 if dtype is not None and _is_large(part.value) else part.value
        case tuple():
            return [_made(each, dtype, integers_too) for each in part]
    return part


def _changed(old: torch.dtype, new: torch.dtype | None, integers_too: bool) -> torch.dtype:
    if new is None or old is torch.bool or not (old.is_floating_point or integers_too):
        return old
    return new
