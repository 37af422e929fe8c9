"""The factors that people give, a loss scale and a headroom: numbers of Python, of NumPy, or tensors of one number."""

from __future__ import annotations

import math
import reprlib
from fractions import Fraction
from typing import Any, Final

# The powers of two that FP32 holds: with any other scale the scaled loss would not be what was meant.
_SCALES: Final = range(-149, 128)


def power_of_two(scale: Any) -> float:
    """Return a scale as a float.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is no power of two that FP32 holds.
    """
    number = _as_float(scale)
    if math.isnan(number):
        raise TypeError(f"scale={reprlib.repr(scale)}: a scale is a number, such as 2.0**16")
    significand, exponent = math.frexp(number)
    power = exponent - 1
    if significand == 0.5 and power in _SCALES:
        return number
    shown, too, hint = repr(number).removesuffix(".0"), "", ""
    if number > 0 and (math.isinf(number) or power not in _SCALES):
        too = "too small, " if number < 1 else "too large, "
    elif number > 0:
        hint = f", such as {2.0**power:g} or {2.0**exponent:g}"
    raise ValueError(
        f"scale={shown}: {too}a scale here is a power of two from 2**{_SCALES[0]} to 2**{_SCALES[-1]}{hint}; "
        "it moves every gradient by whole exponents, and changes no digit of any"
    )


def headroom_of(headroom: Any) -> Fraction:
    """Return a headroom, as a fraction, with which one can calculate exactly.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is under 1, infinite or NaN.
    """
    number = _as_float(headroom)
    if math.isnan(number) and not isinstance(headroom, float):
        raise TypeError(f"headroom={reprlib.repr(headroom)}: headroom is a factor, such as 4.0")
    if not 1 <= number < math.inf:
        raise ValueError(
            f"headroom={number:g}: headroom is the factor by which gradients may grow, 1 or more, such as 4.0"
        )
    return Fraction(number)


def _as_float(value: Any) -> float:
    """Return a number as a float: infinity for an int beyond FP64, NaN for what is no number, truth values too."""
    is_truth_value = isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    if is_truth_value or isinstance(value, str | bytes | bytearray):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):  # the last two from arrays and tensors of several numbers
        return math.nan
