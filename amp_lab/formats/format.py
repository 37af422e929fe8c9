"""What a floating-point format is: three fields of bits, and the rule that makes a number of them.

The pattern of a number is sign | exponent | fraction, read as one whole number. Without the sign bit it is called a
*magnitude* here, and magnitudes count: 0 is zero, 1 the smallest number above it, 2 the next one, and so on to the
largest number, then infinity, then NaN. So the neighbour of a number is one magnitude away, a carry out of the
fraction arrives in the exponent, where it belongs, and "too large" is a comparison of two whole numbers.

All results are exact. Patterns are int64; numbers are FP64, which holds every number of every format here. They are
made of whole numbers, or of FP64's normal ones, so they are the same after `torch.set_flush_denormal(True)`: then the
processor takes subnormal numbers for zero, and Python and PyTorch print FP64's as 0.

Sources: IEEE 754-2019, 3.3 and 3.4 (fields and what they mean), 4.3.1 (nearest even), 5.3.1 (neighbours); for FP8 the
"OCP 8-bit Floating Point Specification (OFP8)", revision 1.0, and Micikevicius et al., "FP8 Formats for Deep Learning".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from amp_lab.formats import inputs
from amp_lab.formats.inputs import Patterns, Values


class Fields(NamedTuple):
    """The fields of patterns as whole numbers, int64, each in the shape of the patterns."""

    sign: torch.Tensor
    exponent: torch.Tensor
    fraction: torch.Tensor


class FormatLimits(NamedTuple):
    """The largest number, the smallest two above zero, and the distance from 1 to the next number."""

    max: float
    smallest_normal: float
    smallest_subnormal: float
    eps: float


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, as its fields define it.

    `Format("tiny", exponent_bits=3, fraction_bits=2)` follows IEEE 754 in everything, and so do all but one of the
    formats of `amp_lab.formats`. OFP8's E4M3 differs, and `has_infinity` says how.

    Args:
        name: what people call it.
        exponent_bits: 2 to 11. More of them is more range.
        fraction_bits: 1 to 52. More of them is more precision.
        dtype: the PyTorch dtype with these patterns, None if there is none. Its `torch.finfo` must agree.
        has_infinity: whether the highest exponent is set aside for infinity and NaN, as in IEEE 754. If not, it serves
            numbers like every other exponent, and only the very last magnitude is NaN.
        saturates: whether what is too large, infinity too, becomes the largest number. If not, it becomes infinity, or
            NaN in a format without infinity.

    Raises:
        ValueError: if a field has another size (FP64, with fields of 11 and 52 bits, is what results are given in), and
            if another argument is not what it should be.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    dtype: torch.dtype | None = None
    has_infinity: bool = True
    saturates: bool = False

    def __post_init__(self) -> None:
        for argument in ("has_infinity", "saturates"):
            if type(getattr(self, argument)) is not bool:
                raise self._error(f"{argument}={getattr(self, argument)!r}", "it is True or False")
        if not isinstance(self.name, str):
            raise self._error(f"name={self.name!r}", "it is a text")
        # With 11 bits FP64 itself needs the highest exponent for infinity: it cannot hold more numbers than it has.
        most = 11 if self.has_infinity else 10
        for field, lowest, highest in (("exponent_bits", 2, most), ("fraction_bits", 1, 52)):
            size = getattr(self, field)
            if type(size) is not int or not lowest <= size <= highest:
                raise self._error(
                    f"{field}={size!r}", f"{field} is a whole number from {lowest} to {highest}"
                )
        if self.dtype is not None:
            self._check_dtype()

    def _check_dtype(self) -> None:
        """Refuse a dtype that has other numbers than these fields."""
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            rule = "it is a floating-point dtype of PyTorch, such as torch.float16, or None"
            raise self._error(f"dtype={self.dtype!r}", rule)
        if self.dtype.itemsize * 8 != self.bits:
            raise self._error("", f"{self.dtype} does not have the {self.bits} bits of these fields")
        if (dtypes := _known_limits(self.dtype)) != (ours := self.limits[:2] + self.limits[3:]):
            names = "largest number, smallest normal number and eps"
            raise self._error("", f"{names} of {self.dtype} are {dtypes}, those of these fields {ours}")

    def _error(self, argument: str, rule: str) -> ValueError:
        call = f"{self.name!r}, {argument}" if argument else f"{self.name!r}"
        return ValueError(f"Format({call}): {rule}")

    def __str__(self) -> str:
        return self.name

    # What follows from the sizes of the fields.

    @property
    def bits(self) -> int:
        """How many bits a number has: sign, exponent and fraction."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        """By how much the exponent field is higher than the exponent, so that it need not have a sign of its own."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def limits(self) -> FormatLimits:
        """The ends of the format, as Python floats."""
        ends = torch.tensor([self._largest, 1], device="cpu")  # whatever the default device is
        largest, smallest_subnormal = self.decode(ends).tolist()
        smallest_normal = math.ldexp(1.0, self._lowest_exponent)
        return FormatLimits(largest, smallest_normal, smallest_subnormal, self._eps)

    @property
    def _eps(self) -> float:
        """What the last bit of the fraction is worth next to 1."""
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def _lowest_exponent(self) -> int:
        """The exponent of the smallest normal number and of all subnormal ones."""
        return 1 - self.bias

    @property
    def _last_magnitude(self) -> int:
        """Every bit set but the sign: NaN in every format."""
        return (1 << (self.bits - 1)) - 1

    @property
    def _end(self) -> int:
        """The last magnitude before the NaNs: infinity (highest exponent, fraction 0) or, without it, a number."""
        return self._last_magnitude - ((1 << self.fraction_bits) - 1 if self.has_infinity else 1)

    @property
    def _largest(self) -> int:
        """The magnitude of the largest number."""
        return self._end - 1 if self.has_infinity else self._end

    @property
    def _nan(self) -> int:
        """The NaN that `encode` writes: of the many in IEEE 754 the quiet one with nothing else in its fraction."""
        return self._end + (1 << (self.fraction_bits - 1)) if self.has_infinity else self._last_magnitude

    @property
    def _overflow(self) -> int:
        """The magnitude that `encode` writes for what is too large."""
        if self.saturates:
            return self._largest
        return self._end if self.has_infinity else self._nan

    # From patterns to numbers.

    def fields(self, patterns: Patterns) -> Fields:
        """Take patterns apart; `decode` says what `patterns` may be."""
        whole = inputs.patterns(patterns, self.name, self.bits)
        exponent = (whole >> self.fraction_bits) & ((1 << self.exponent_bits) - 1)
        return Fields((whole >> (self.bits - 1)) & 1, exponent, whole & ((1 << self.fraction_bits) - 1))

    def decode(self, patterns: Patterns) -> torch.Tensor:
        """Return the numbers that patterns stand for.

        Args:
            patterns: whole numbers from 0 to 2**bits - 1: an int, a list (of lists) of ints, an array or a tensor of an
                integer dtype. A *signed* array or tensor exactly as wide as the format is read for its bits, so
                `FP16.decode(x.view(torch.int16))` is x again; a negative number anywhere else is an error (but in FP64,
                whose patterns use up int64's sign).

        Returns:
            FP64 tensor, same shape, same device (on Apple's GPUs, which have no FP64: on the CPU).

        Raises:
            TypeError: if something is not a whole number.
            ValueError: if a number is no pattern of this format.
        """
        sign, exponent, fraction = self.fields(patterns)
        magnitude = (exponent << self.fraction_bits) | fraction
        size = self._size(exponent, fraction)
        size = size.masked_fill(magnitude > self._largest, math.inf)
        return torch.where(sign == 1, -size, size).masked_fill(magnitude > self._end, math.nan)

    def _size(self, exponent: torch.Tensor, fraction: torch.Tensor) -> torch.Tensor:
        """Return the numbers without their sign, as if the highest exponent were one like the others."""
        if self.exponent_bits == 11:
            # FP64's own exponent field. All that can be missing is the end of the fraction.
            return ((exponent << 52) | (fraction << (52 - self.fraction_bits))).view(torch.float64)
        # Normal: 2^(exponent - bias) × 1.fraction. Exponent field 0, subnormal: 2^(1 - bias) × 0.fraction.
        significand = fraction.double() * self._eps + (exponent > 0)
        return significand * _power_of_two(exponent.clamp(min=1) - self.bias)

    def kind(self, pattern: Patterns) -> str:
        """Return what one pattern stands for: "zero", "subnormal", "normal", "infinity" or "NaN".

        Raises what `decode` raises, and ValueError if it is not one pattern.
        """
        _, exponent, fraction = (int(_only(field)) for field in self.fields(pattern))
        magnitude = (exponent << self.fraction_bits) | fraction
        if magnitude > self._largest:
            return "NaN" if magnitude > self._end else "infinity"
        if exponent:
            return "normal"
        return "subnormal" if fraction else "zero"

    def bit_string(self, pattern: Patterns) -> str:
        """Return the bits of one pattern, field by field: "0 01111 0000000000" is 1 in FP16.

        Raises what `decode` raises, and ValueError if it is not one pattern.
        """
        sizes = (1, self.exponent_bits, self.fraction_bits)
        fields = [int(_only(field)) for field in self.fields(pattern)]
        return " ".join(f"{field:0{size}b}" for field, size in zip(fields, sizes, strict=True))

    # From numbers to patterns.

    def encode(self, values: Values) -> torch.Tensor:
        """Return the patterns of the numbers of this format that are nearest to `values`.

        Of two that are equally near it is the even one, whose last bit is 0. A value is rounded once, straight from
        FP64. PyTorch's own casts on a CPU from FP64 to a dtype narrower than FP32 round twice, to FP32 on the way:
        `torch.tensor(1 + 2**-11 + 2**-40, dtype=torch.float64).half()` is 1, though 1 + 2**-10 is nearer.

        Args:
            values: a number, a list (of lists) of numbers, an array or a tensor of a floating-point or integer dtype.
                Python's floats are FP64, and are not rounded on their way in.

        Returns:
            int64 tensor, same shape, same device (on Apple's GPUs: on the CPU), without a gradient. A pattern of FP64
            is its 64 bits read as int64. The sign of zero is kept. All NaNs are one, the positive: the sign of NaN
            means nothing, and processors differ in it.

        Raises:
            TypeError: if `values` are something else: bool, complex, text, a sparse, nested, quantised or meta tensor,
                a masked array.
            ValueError: if lists do not make a rectangle, or a whole number is beyond ±2**53: FP64 does not hold all of
                those, and the number would be rounded twice.
        """
        numbers = inputs.numbers(values)
        below, lost, unit = self._towards_zero(numbers)
        is_odd = (below & 1) == 1
        magnitude = below + ((2 * lost > unit) | ((2 * lost == unit) & is_odd))
        magnitude = magnitude.masked_fill(magnitude > self._largest, self._overflow)
        magnitude = magnitude.masked_fill(numbers.isnan(), self._nan)
        is_negative = numbers.signbit() & (magnitude <= self._end)
        return magnitude | (is_negative.long() << (self.bits - 1))

    def round(self, values: Values) -> torch.Tensor:
        """Return what `values` become in this format, as FP64 numbers: `decode(encode(values))`."""
        return self.decode(self.encode(values))

    def ulp(self, values: Values) -> torch.Tensor:
        """Return the "unit in the last place": how far apart the numbers of this format lie where `values` are.

        For 2^e <= |x| < 2^(e+1) it is 2^(e - fraction_bits). So at a power of two it is the distance to the next number
        away from zero; towards zero the numbers lie half as far apart. Under the smallest normal number, and at zero,
        it is the smallest subnormal one. Beyond the largest number there is no next one: infinity. NaN for NaN.

        `values`, shape, device and errors are those of `encode`; FP64.
        """
        numbers = inputs.numbers(values)
        exponent = _exponent(numbers).clamp(min=self._lowest_exponent)
        spacing = _power_of_two(exponent - self.fraction_bits)
        spacing = spacing.masked_fill(numbers.abs() > self.limits.max, math.inf)
        return spacing.masked_fill(numbers.isnan(), math.nan)

    def neighbours(self, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest number of this format below each of `values`, and the nearest one above.

        They differ from the value also where the value is itself a number of the format. Infinity counts as a number
        where the format has it: above FP16's 65504 is infinity, below infinity is 65504. NaN says that there is none:
        above infinity, above E4M3's 448, and around NaN.

        `values`, shape, device and errors are those of `encode`; both FP64.
        """
        numbers = inputs.numbers(values)
        size = numbers.abs()
        inner = self._towards_zero(size)[0].clamp(max=self._largest).masked_fill(size.isinf(), self._end)
        inner_is_itself = self._step(inner).view(torch.int64) == size.view(torch.int64)
        nearer, farther = self._step(inner - inner_is_itself.long()), self._step(inner + 1)
        is_negative = numbers.signbit()
        below = torch.where(is_negative, -farther, nearer)
        above = torch.where(is_negative, -nearer, farther)
        return below.masked_fill(numbers.isnan(), math.nan), above.masked_fill(numbers.isnan(), math.nan)

    def _step(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the numbers so many steps above zero, or below it if negative; NaN past the end."""
        return self.decode(steps.abs() | ((steps < 0).long() << (self.bits - 1)))

    def _towards_zero(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the magnitude of the last number not beyond |numbers|, and the rest: `lost / unit` of a step.

        All three are int64. Where the numbers of the format end, the count goes on as if they did not.
        """
        exponent, significand = _exponent(numbers), _significand(numbers)
        scale = exponent.clamp(min=self._lowest_exponent)
        # Of FP64's 52 binary places the format keeps fraction_bits, and one less for each step that the number is
        # under the smallest normal one. Whoever loses 54 has none left, nor half a step.
        dropped = (52 - self.fraction_bits + scale - exponent).clamp(max=54)
        unit = torch.ones_like(dropped) << dropped
        # The leading 1 of a normal number is part of what is kept: added to the fraction's place of the magnitude it
        # makes the exponent field one larger, which is where the fields of normal numbers begin.
        magnitude = ((scale - self._lowest_exponent) << self.fraction_bits) + (significand >> dropped)
        return magnitude, significand & (unit - 1), unit


def _only(result: torch.Tensor) -> float:
    """Return the one number of a result."""
    if result.numel() != 1:
        raise ValueError(
            f"this takes one pattern, not {result.numel()}: call it for each of them, `for p in patterns.tolist()`"
        )
    return result.item()


def _known_limits(dtype: torch.dtype) -> tuple[float, ...] | None:
    """Return what PyTorch knows of a dtype: largest number, smallest normal one, eps. Of FP4 it knows nothing."""
    try:
        info = torch.finfo(dtype)
        return info.max, info.smallest_normal, info.eps
    except (TypeError, RuntimeError):
        return None


# FP64's own fields: what all numbers arrive in.


def _exponent(numbers: torch.Tensor) -> torch.Tensor:
    """Return e of |number| = 2^e × 1.fraction; -1022 for zero and subnormals, 1024 for infinity and NaN."""
    return ((numbers.view(torch.int64) >> 52) & 0x7FF).clamp(min=1) - 1023


def _significand(numbers: torch.Tensor) -> torch.Tensor:
    """Return 2^52 × 1.fraction, a whole number; 2^52 × 0.fraction for zero and subnormals."""
    bits = numbers.view(torch.int64)
    is_normal = ((bits >> 52) & 0x7FF) > 0
    return (bits & ((1 << 52) - 1)) | (is_normal.long() << 52)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """Return 2^exponent for exponents from -1074 to 1023, and infinity for 1024: FP64 with a single bit set."""
    normal = (exponent + 1023).clamp(min=0) << 52
    subnormal = torch.ones_like(exponent) << (exponent + 1074).clamp(0, 51)
    return torch.where(exponent < -1022, subnormal, normal).view(torch.float64)
