"""Numbers as people type them: `0.1`, `2**-24`, `1/3`, `0x1.8p3`, `-inf`. The text is read, never run."""

from __future__ import annotations

import ast
import math
import operator
import re
import reprlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral
from typing import Any

_LONGEST = 80  # characters
_LARGEST_POWER_OF_TEN = 400  # beyond it no format has a number, and exact arithmetic becomes slow
_LARGEST_POWER_OF_TWO = 10_000  # likewise, and further away than the longest text can come back from
_HEX = re.compile(r"([+-]?)0x([0-9a-f_]*)\.?([0-9a-f_]*)(?:p([+-]?\d+))?", re.IGNORECASE)
_CHARACTERS = re.compile(r"[0-9a-fA-F_xXoObBeEpP.+*/() -]*")
_MINUS_ZERO = re.compile(r"-[x0_.]+([ep][+-]?\d+)?$", re.IGNORECASE)  # -1 + 1 is a plain zero
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# What keyboards, word processors and calculators write.
_SPELLINGS = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "^": "**", "÷": "/", "∞": "inf"})


class NotANumber(ValueError):
    """The text is no number that the explorer can read; the message is a sentence that says what to type."""


@dataclass(frozen=True)
class Number:
    """A number as it was meant: `exact` as typed (None for inf and NaN), `value` as FP64 keeps it.

    `value` is what every format is asked to store: `exact`, rounded once. Of a single decimal number Python makes the
    same. Of `0.1 + 0.2` it makes 0.30000000000000004, as it rounds both numbers and then their sum; this is 0.3.
    """

    text: str
    value: float
    exact: Fraction | None


def number(value: float | str) -> Number:
    """Read a text, or take a float at its shortest spelling: 0.1 means one tenth, as it does when it is typed.

    Raises:
        TypeError: for what is neither a text nor a number.
        NotANumber: for a text that `read` refuses, and an int that is beyond FP64.
    """
    if isinstance(value, str):
        return read(value)
    if isinstance(value, Integral) and abs(value) < 10 ** (_LONGEST - 1):
        return read(str(int(value)))  # not by way of float, which has no 2**53 + 1
    return read(_shortest(as_float(value)))


def as_float(value: Any, name: str = "") -> float:
    """Return a number as a float. `name` is for messages.

    Raises:
        TypeError: for what is no number.
        NotANumber: for an int or a fraction that is beyond FP64.
    """
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except OverflowError:
        raise NotANumber(
            "That is beyond FP64, whose largest number is about 1.8e308: give a smaller one, or math.inf."
        ) from None
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # the last two from arrays and tensors of more than one number
        pass
    whose = f"{name}: " if name else ""
    raise TypeError(
        f"{whose}a number such as 0.1 is needed; this is a {type(value).__name__}: {reprlib.repr(value)}"
    )


def exactly(value: float) -> Number:
    """Take a float for precisely what it is, digit for digit."""
    return Number(_shortest(value), value, Fraction(value) if math.isfinite(value) else None)


def _shortest(value: float) -> str:
    """Write a float as one types it: "2050" where Python has "2050.0"."""
    return repr(value).removesuffix(".0")


def read(text: str) -> Number:
    """Read a decimal or hexadecimal number, `inf`, `nan`, or a sum, product, quotient or power of numbers.

    Raises:
        NotANumber: for anything else, for roots, and for numbers beyond 10^±400.
    """
    plain = text.strip().translate(_SPELLINGS)
    if not plain:
        raise NotANumber("Type a number, such as 0.1, 65519.99, 2**-24 or 1/3.")
    if len(plain) > _LONGEST:
        raise NotANumber(f"That is long. Up to {_LONGEST} characters are read.")
    if plain.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        return Number(text, _as_float(plain), None)
    try:
        exact = _exact(plain)
    except NotANumber:
        raise
    except _TooFar:
        raise NotANumber("That is beyond every format here: stay between 1e-400 and 1e400.") from None
    except ZeroDivisionError:
        raise NotANumber("That divides by zero. For infinity, type inf.") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        advice = f" Type {plain.replace(',', '')}." if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", plain) else ""
        example = advice or " Examples: 0.1, 1e-8, 2**-24, 1/3, 0x1.8p3, -inf."
        raise NotANumber(f"“{text.strip()}” is not a number that can be read here.{example}") from None
    return Number(text, _nearest(exact, negative=_MINUS_ZERO.match(plain) is not None), exact)


class _TooFar(Exception):
    """A number is so large or so small that it is not worked out."""


def _as_float(plain: str) -> float:
    try:
        return float(plain)
    except ValueError:  # such as "--inf"
        raise NotANumber(f"“{plain}” is not a number. For infinity, type inf or -inf.") from None


def _exact(plain: str) -> Fraction:
    if found := _HEX.fullmatch(plain):
        return _hexadecimal(*(part.replace("_", "") for part in found.groups("0")))
    try:
        return _decimal(plain)
    except InvalidOperation:
        pass
    if not _CHARACTERS.fullmatch(plain):
        raise ValueError(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's compiler comments on what looks odd, such as (1)(2)
        tree = ast.parse(plain, mode="eval")
    return _work_out(tree.body, plain)


def _hexadecimal(sign: str, whole: str, places: str, power: str) -> Fraction:
    """Work out the fields of `0x1.8p3`. Not with `float.fromhex`: that rounds."""
    significand = Fraction(int(f"{sign}{whole}{places}", base=16), 16 ** len(places))
    if not significand:
        return significand
    if abs(int(power)) > _LARGEST_POWER_OF_TWO:
        raise _TooFar
    return _in_reach(significand * Fraction(2) ** int(power))


def _decimal(plain: str) -> Fraction:
    try:
        decimal = Decimal(plain)
    except InvalidOperation:
        significand, _, power = plain.replace("_", "").lower().partition("e")
        if not re.fullmatch(r"[+-]?\d{10,}", power):
            raise
        # Too large a power for Decimal. It is too far, unless it is that of a zero.
        decimal = Decimal(f"{significand}e{max(-(10**9), min(int(power), 10**9))}")
    if not decimal.is_finite():
        raise ValueError(plain)
    if decimal and abs(decimal.adjusted()) > _LARGEST_POWER_OF_TEN:
        raise _TooFar
    # 0e999999999 is 0, but its Fraction would be worked out with all those digits.
    return Fraction(decimal) if decimal else Fraction(0)


def _work_out(node: ast.expr, plain: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            # From the text, as Python has rounded the constant already.
            return _constant(ast.get_source_segment(plain, node) or "")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            found = _work_out(operand, plain)
            return -found if isinstance(node.op, ast.USub) else found
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _in_reach(_power(_work_out(left, plain), _work_out(right, plain)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _in_reach(_OPERATORS[type(op)](_work_out(left, plain), _work_out(right, plain)))
    raise ValueError(plain)


def _constant(text: str) -> Fraction:
    try:
        return _decimal(text)
    except InvalidOperation:
        return _in_reach(Fraction(int(text, base=0)))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NotANumber("The exponent of a power must be a whole number here: roots are not worked out.")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * size > 10 * _LARGEST_POWER_OF_TEN and abs(base) not in (0, 1):
        raise _TooFar
    return base ** int(exponent)


def _in_reach(found: Fraction) -> Fraction:
    limit = 10**_LARGEST_POWER_OF_TEN
    if found and not Fraction(1, limit) <= abs(found) <= limit:
        raise _TooFar
    return found


def _nearest(exact: Fraction, *, negative: bool) -> float:
    if not exact:
        return -0.0 if negative else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
