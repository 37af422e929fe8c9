"""What number formats make of a number, in words: its bits, its value, its error, its neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from typing import Any, Protocol

from amp_lab.view.fields import Bits
from amp_lab.view.typed import Number

# So many digits of a stored value are written out. Rounded, they might show another number of the format.
_CUT = Context(prec=18, rounding=ROUND_DOWN)
_TIE = Fraction(1, 2)


class Layout(Protocol):
    """How a format divides its bits; one bit more is the sign's."""

    @property
    def name(self) -> str: ...

    @property
    def exponent_bits(self) -> int: ...

    @property
    def fraction_bits(self) -> int: ...


class NumberFormat(Layout, Protocol):
    """What is asked of a number format; those of `amp_lab.formats` answer. Each method is given one number."""

    def encode(self, values: Any) -> Any: ...

    def decode(self, patterns: Any) -> Any: ...

    def ulp(self, values: Any) -> Any: ...

    def neighbours(self, values: Any) -> tuple[Any, Any]: ...

    def kind(self, pattern: Any) -> str: ...

    def bit_string(self, pattern: Any) -> str: ...


@dataclass(frozen=True)
class Stored:
    """One number in one format: `meant` is what was typed, `value` what the format makes of it.

    `below` and `above` are the format's numbers next to `value`, NaN where there is none; `kind` is "zero",
    "subnormal", "normal", "infinity" or "NaN".
    """

    format: NumberFormat
    meant: Number
    bits: Bits
    kind: str
    value: float
    ulp: float
    below: float
    above: float

    @property
    def error(self) -> Fraction | None:
        """Stored minus meant, exactly; None where one of them is infinite or NaN."""
        if self.meant.exact is None or not math.isfinite(self.value):
            return None
        return Fraction(self.value) - self.meant.exact

    @property
    def fate(self) -> str:
        """The kind of number, and whether the format was too narrow for what was meant."""
        if self._overflowed:
            largest = math.isfinite(self.value)
            return "overflow: the largest number" if largest else f"overflow: {self.kind}"
        if self.error and not self.value:
            return "underflow: zero"
        return self.kind

    @property
    def _overflowed(self) -> bool:
        if math.isnan(self.meant.value):
            return False
        if not math.isfinite(self.value):
            return self.meant.exact is not None or math.isnan(self.value)
        # A number in reach is stored within half an ulp; of its FP64 value, as a digit beyond that could break a tie.
        given = self.meant.value
        return math.isinf(given) or abs(Fraction(self.value) - Fraction(given)) > _TIE * Fraction(self.ulp)

    @property
    def error_in_words(self) -> str:
        """The error as a number and in ulp: how far apart the format's numbers are there."""
        if math.isnan(self.value):
            return "NaN"
        if self.error is None:
            return "infinite" if self._overflowed else "none"
        if not self.error:
            return "none"
        return f"{signed(self.error)} ({_in_ulp(self.error / Fraction(self.ulp))} ulp)"

    @property
    def share_in_words(self) -> str:
        """The error as a share of what was meant, in percent; empty where there is no such share."""
        return (
            f"{signed(100 * self.error / self.meant.exact, 3)} %" if self.error and self.meant.exact else ""
        )


def store(format: NumberFormat, meant: Number) -> Stored:
    """Ask a format what it makes of a number. Only the error is worked out here, exactly."""
    pattern = format.encode(meant.value)
    value = float(format.decode(pattern))
    below, above = map(float, format.neighbours(value))
    bits = Bits(*format.bit_string(pattern).split())
    return Stored(format, meant, bits, format.kind(pattern), value, float(format.ulp(value)), below, above)


def _in_ulp(share: Fraction) -> str:
    """Write an error in ulp. What is nearly a tie must not look like one: that decides which way it was rounded."""
    for digits in (3, 6, 12):
        words = signed(share, digits)
        if abs(share) == _TIE or abs(Fraction(words.replace("−", "-"))) != _TIE:
            return words
    return f"nearly {signed(share, 1)}"


def decimal(value: float) -> str:
    """Write a float in decimal: exactly where 18 digits are enough, or its first 18 digits and "…"."""
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN").replace("-", "−")
    whole = Decimal(value)
    shown = _CUT.create_decimal(whole)
    more = "" if shown == whole else "…"
    if value and not 1e-5 <= abs(value) < 1e16:
        mantissa, _, exponent = f"{shown.normalize():e}".partition("e")
        return f"{mantissa}{more}e{int(exponent)}".replace("-", "−")
    return f"{shown:f}{more}".replace("-", "−")


def signed(value: Fraction, digits: int = 4) -> str:
    """Write a number with its sign and a few digits: "+1.490e−9". Decimal has a range that float has not."""
    short = Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))
    if abs(short) >= Decimal("0.001") and abs(short) < 1_000_000:
        return f"{short:+f}".replace("-", "−")
    mantissa, _, exponent = f"{short.normalize():+e}".partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")
