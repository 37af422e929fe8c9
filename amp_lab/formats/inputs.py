"""What the formats take for numbers and for patterns. Nothing is rounded or read as something else in silence."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Values: TypeAlias = float | Sequence[Any] | np.ndarray[Any, Any] | np.generic | torch.Tensor
Patterns: TypeAlias = int | Sequence[Any] | np.ndarray[Any, Any] | np.generic | torch.Tensor

# FP64 holds every whole number up to here, but not the next one.
LARGEST_WHOLE = 2**53

_NUMBERS = "numbers are floats or ints"
_PATTERNS = "patterns are whole numbers"
_CONVERT = "convert it first, in the way you mean"

_INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def numbers(values: Values) -> torch.Tensor:
    """Return numbers as FP64 with their exact values; `Format.encode` says what is taken."""
    tensor = _as_tensor(values, _NUMBERS)
    if tensor is None:
        return _from_leaves(values, _number, numbers, torch.float64)
    if tensor.is_floating_point():
        return tensor if tensor.dtype is torch.float64 else _widened(tensor)
    whole = _whole(tensor, _NUMBERS)
    wrong = (whole > LARGEST_WHOLE) | (whole < -LARGEST_WHOLE)
    if tensor.dtype is torch.uint64:
        wrong |= whole < 0  # the upper half of uint64, read as int64
    if wrong.any():
        raise _too_large(_first(tensor, wrong))
    return whole.double()


def patterns(values: Patterns, name: str, bits: int) -> torch.Tensor:
    """Return patterns of `bits` bits as int64; `Format.decode` says what is taken. `name` is for messages."""
    tensor = _as_tensor(values, _PATTERNS)
    if tensor is None:
        return _from_leaves(
            values,
            lambda value: _pattern(value, name, bits),
            lambda inner: patterns(inner, name, bits),
            torch.int64,
        )
    whole = _whole(tensor, _PATTERNS)
    if bits == 64:
        return whole
    if tensor.dtype.itemsize * 8 == bits:
        return whole & ((1 << bits) - 1)
    wrong = (whole < 0) | (whole > (1 << bits) - 1)  # 1 << 63 would not fit
    if wrong.any():
        raise _no_pattern(_first(tensor, wrong), name, bits)
    return whole


def _as_tensor(values: object, rule: str) -> torch.Tensor | None:
    """Return an array or tensor as a dense tensor without a gradient, and None for anything else."""
    if isinstance(values, np.ndarray | np.generic):
        return _from_array(values, rule)
    if not isinstance(values, torch.Tensor):
        return None
    if values.layout is not torch.strided or values.is_nested or values.is_quantized:
        raise TypeError(
            "a plain dense tensor is needed: `.to_dense()` makes one of a sparse tensor, `.dequantize()` of a "
            "quantised one, `torch.nested.to_padded_tensor` of a nested one"
        )
    if values.is_meta:
        raise TypeError(f"{rule}; this is a tensor on PyTorch's meta device, which has none")
    if values.dtype is torch.float4_e2m1fn_x2:
        raise TypeError(f"{rule}; this is a tensor of {values.dtype}, with two numbers in each byte")
    plain = values.detach().resolve_neg()
    return plain.cpu() if plain.device.type == "mps" else plain


def _from_array(values: np.ndarray[Any, Any] | np.generic, rule: str) -> torch.Tensor:
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{rule}; this is a masked array: `.filled(value)` puts a number where it is masked, "
            "`.compressed()` leaves these places out"
        )
    array = np.asarray(values)
    try:
        # PyTorch wants this machine's byte order, and memory that may be written to: hence the copy.
        return torch.as_tensor(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError:  # PyTorch has no such dtype
        raise TypeError(f"{rule}; this is an array of {array.dtype}: {_CONVERT}") from None


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers of a dtype that FP32 holds as FP64.

    Not by a cast alone: after `torch.set_flush_denormal(True)` that makes zero of FP32's subnormal numbers.
    """
    narrow = tensor.float()
    bits = narrow.view(torch.int32)
    subnormal = (bits & 0x7F_FFFF).double() * 2.0**-149
    subnormal = torch.where(bits < 0, -subnormal, subnormal)
    return torch.where((bits & 0x7F80_0000) == 0, subnormal, narrow.double())


def _whole(tensor: torch.Tensor, rule: str) -> torch.Tensor:
    if tensor.dtype not in _INTEGERS:
        raise TypeError(f"{rule}; this is a tensor of {tensor.dtype}: {_CONVERT}")
    return tensor.long()


def _first(tensor: torch.Tensor, where: torch.Tensor) -> int:
    return int(tensor.flatten()[int(where.flatten().long().argmax())].item())


def _from_leaves(
    values: object,
    leaf: Callable[[object], float],
    tensor: Callable[[Any], torch.Tensor],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return nested lists as a tensor; `leaf` checks each number in them, `tensor` each array and tensor."""
    nested = _leaves(values, leaf, tensor)
    try:
        return torch.tensor(nested, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the lists do not make a rectangle of numbers: {error}") from None


def _leaves(values: object, leaf: Callable[[object], float], tensor: Callable[[Any], torch.Tensor]) -> Any:
    if isinstance(values, list | tuple | range):
        return [_leaves(value, leaf, tensor) for value in values]
    if isinstance(values, float):  # also NumPy's float64
        return leaf(values)
    if isinstance(values, torch.Tensor | np.ndarray | np.generic):
        return tensor(values).tolist()
    return leaf(values)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{_NUMBERS}; this is {_described(value)}: convert it first")
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        raise _too_large(value)
    return float(value)


def _pattern(value: object, name: str, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{_PATTERNS}; this is {_described(value)}")
    if bits == 64 and -(2**63) <= value < 2**64:
        return (value + 2**63) % 2**64 - 2**63
    if not 0 <= value < 1 << bits:
        raise _no_pattern(value, name, bits)
    return value


def _described(value: object) -> str:
    return f"a {type(value).__name__}, {reprlib.repr(value)}"


def _written(value: int) -> str:
    """Write a whole number. Python refuses to write very long ones, and nobody reads them."""
    return str(value) if value.bit_length() <= 128 else f"a whole number of {value.bit_length()} bits"


def _too_large(value: int) -> ValueError:
    return ValueError(
        f"{_written(value)} is beyond ±2**53, where FP64 no longer holds every whole number: "
        "make it a float first, if you do not mind the rounding"
    )


def _no_pattern(value: int, name: str, bits: int) -> ValueError:
    top = (1 << bits) - 1
    message = f"{_written(value)} is no pattern of {name}, which has {bits} bits: 0 to {top} (0x{top:X})"
    if -(1 << (bits - 1)) <= value < 0:
        message += f". If it is a signed view of one, take `{value} & 0x{top:X}`"
    return ValueError(message)
