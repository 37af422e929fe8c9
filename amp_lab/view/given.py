"""What the pictures check of their arguments, before there is a figure: a notebook would show it, empty."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol, TypeVar

import torch


class Named(Protocol):
    """What every number format has, and nothing that is given in its place."""

    @property
    def name(self) -> str: ...
    @property
    def fraction_bits(self) -> int: ...


Format = TypeVar("Format", bound=Named)


def several(formats: Iterable[Format], function: str) -> Sequence[Format]:
    """Return formats as a sequence.

    Raises:
        TypeError: if they are no formats, or a single one without brackets.
        ValueError: if there are none.
    """
    if is_format(formats):
        raise _no_list(function, f"{_name(formats)} alone is none")
    if not isinstance(formats, Iterable) or isinstance(formats, str | bytes):
        raise _no_list(function, f"this is a {type(formats).__name__}, {reprlib.repr(formats)}")
    found = list(formats)
    for each in found:
        if not is_format(each):
            raise _no_list(function, f"{reprlib.repr(each)} is no format")
    if not found:
        raise ValueError(f"{function} was given no format to draw, for instance [formats.FP16, formats.BF16]")
    return found


def is_format(value: Any) -> bool:
    """Tell a number format from a dtype, a text and everything else."""
    return hasattr(value, "fraction_bits") and hasattr(value, "name")


def numbers(values: Any, what: str) -> list[float]:
    """Return numbers as a list of floats: a list, an array, a generator, a tensor of any dtype and device.

    Raises:
        TypeError: for anything else.
    """
    try:
        if isinstance(values, str | bytes) or getattr(values, "is_meta", False):
            raise TypeError(f"this is {reprlib.repr(values)}")
        found = values.tolist() if hasattr(values, "tolist") else values
        # A loss that was never detached warns when it becomes a number.
        return [float(each.detach() if isinstance(each, torch.Tensor) else each) for each in found]
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} must be one number for each step ({error})") from None


def named(values: Any, function: str, example: str) -> Mapping[str, Any]:
    """Return a mapping as it is.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(values, Mapping):
        return values
    raise TypeError(f"{function} needs a dict, such as {example}; this is a {type(values).__name__}")


def finite(value: Any) -> bool:
    """Tell finite numbers that are not negative from everything else."""
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def _name(value: Any) -> str:
    return str(value.name)


def _no_list(function: str, reason: str) -> TypeError:
    return TypeError(
        f"{function} needs a list of formats, as in [formats.FP16] (`from amp_lab import formats`); {reason}"
    )
