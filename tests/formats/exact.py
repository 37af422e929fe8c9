"""What a format does, worked out slowly with fractions, from the standards and without `amp_lab.formats`."""

import math
from fractions import Fraction
from typing import NamedTuple


class Plan(NamedTuple):
    """A format: sizes of its fields, whether it has infinity, what a number too large becomes."""

    exponent_bits: int
    fraction_bits: int
    has_infinity: bool = True
    saturates: bool = False

    @property
    def lowest(self) -> int:
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def largest(self) -> Fraction:
        highest = 2 ** (self.exponent_bits - 1) - 1
        if self.has_infinity:
            return (2 - Fraction(1, 2**self.fraction_bits)) * Fraction(2) ** highest
        return (2 - Fraction(2, 2**self.fraction_bits)) * Fraction(2) ** (highest + 1)

    def number(self, pattern: int) -> float:
        """The number of a pattern: OFP8's table for E4M3, IEEE 754's for all others."""
        digits = f"{pattern:0{1 + self.exponent_bits + self.fraction_bits}b}"
        sign = -1.0 if digits[0] == "1" else 1.0
        exponent, fraction = digits[1 : 1 + self.exponent_bits], digits[1 + self.exponent_bits :]
        if "0" not in exponent and (self.has_infinity or "0" not in fraction):
            return sign * math.inf if self.has_infinity and "1" not in fraction else math.nan
        significand = int("1" in exponent) + Fraction(int(fraction, 2), 2**self.fraction_bits)
        power = int(exponent, 2) - (2 ** (self.exponent_bits - 1) - 1) if "1" in exponent else self.lowest
        return sign * float(significand * Fraction(2) ** power)

    def spacing(self, value: float) -> Fraction:
        """The distance between numbers around a finite value, had the exponent no upper end."""
        size = abs(Fraction(value))
        exponent = self.lowest
        while size >= Fraction(2) ** (exponent + 1):
            exponent += 1
        return Fraction(2) ** (exponent - self.fraction_bits)

    def rounded(self, value: float) -> float:
        """The nearest number, of two the even one: Python's `round` of a Fraction does that."""
        if math.isnan(value):
            return math.nan
        size: Fraction | float = abs(value)
        if math.isfinite(value):
            size = round(Fraction(size) / self.spacing(value)) * self.spacing(value)
        if size > self.largest:
            size = self.largest if self.saturates else math.inf if self.has_infinity else math.nan
        return math.copysign(float(size), value)

    def numbers(self) -> list[float]:
        """All numbers of a small format, upwards, infinities included, zero once."""
        patterns = range(2 ** (1 + self.exponent_bits + self.fraction_bits))
        return sorted({number for number in map(self.number, patterns) if not math.isnan(number)})


PLANS = {
    "FP64": Plan(11, 52),
    "FP32": Plan(8, 23),
    "TF32": Plan(8, 10),
    "FP16": Plan(5, 10),
    "BF16": Plan(8, 7),
    "FP8_E4M3": Plan(4, 3, has_infinity=False, saturates=True),
    "FP8_E4M3_OCP": Plan(4, 3, has_infinity=False),
    "FP8_E5M2": Plan(5, 2),
}
