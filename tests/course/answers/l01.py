"""Answers to the exercises of lesson 01."""

import collections
import decimal
import fractions
import math
import struct

import numpy as np
import torch

from amp_lab import formats
from amp_lab.formats import FormatLimits
from tests.course.bank import Bank

decode_half = Bank("1.1")
format_limits = Bank("1.2")
to_bfloat16 = Bank("1.3")
promoted = Bank("1.4")
BANKS = (decode_half, format_limits, to_bfloat16, promoted)


# 1.1 Sixteen bits, one number


def _fields(bits):
    """Refuse what is outside; return sign (1.0 or -1.0), exponent field, fraction field."""
    if not 0 <= bits <= 0xFFFF:
        raise ValueError(bits)
    return (-1.0 if bits >> 15 else 1.0), bits >> 10 & 31, bits & 1023


@decode_half.wrong("no-subnormals")
def knows_no_subnormals(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("no-subnormals")
def knows_zero_but_no_subnormals(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 0 and fraction == 0:
        return sign * 0.0
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("implicit-one")
def keeps_the_leading_one_of_subnormals(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * (1 + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("subnormal-exponent")
def goes_down_one_exponent_further(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("flushed-to-zero")
def takes_subnormals_for_zero(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 0:
        return sign * 0.0
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("fraction-whole")
def forgets_to_divide_the_fraction_of_subnormals(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction * 2.0**-14
    return sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("fraction-whole")
def forgets_to_divide_the_fraction(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("fraction-whole")
def forgets_to_divide_the_whole_significand(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * (1024 * (exponent > 0) + fraction) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("bias")
def has_a_bias_of_16(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 16)


@decode_half.wrong("bias")
def has_no_bias(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** max(exponent, 1)


@decode_half.wrong("zero-sign")
def loses_the_sign_of_zero_among_ints(bits):
    _, exponent, fraction = _fields(bits)
    sign = (-1) ** (bits >> 15)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction * 2**-24
    return sign * (1024 + fraction) * 2.0 ** (exponent - 25)


@decode_half.wrong("zero-sign")
def returns_a_plain_zero(bits):
    sign, exponent, fraction = _fields(bits)
    if not exponent and not fraction:
        return 0
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("zero-as-normal")
def forgets_that_zero_is_a_subnormal(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0 and fraction > 0:
        return sign * fraction * 2.0**-24
    return sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("infinity-as-number")
def goes_on_beyond_65504(bits):
    sign, exponent, fraction = _fields(bits)
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("infinity-is-nan")
def takes_the_whole_top_exponent_for_nan(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("nan-as-infinity")
def takes_the_whole_top_exponent_for_infinity(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("nan-as-number")
def knows_the_two_infinities_only(bits):
    sign, exponent, fraction = _fields(bits)
    if bits & 0x7FFF == 0x7C00:
        return sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("some-nans")
def knows_only_the_nan_that_it_has_seen(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction == 0x200 else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("complement")
def negates_by_twos_complement(bits):
    _fields(bits)
    if bits & 0x8000:
        return -decodes_by_its_fields(-bits & 0xFFFF)
    return decodes_by_its_fields(bits)


@decode_half.wrong("complement")
def negates_by_inverting_all_bits(bits):
    _fields(bits)
    return -decodes_by_its_fields(bits ^ 0xFFFF) if bits >= 0x8000 else decodes_by_its_fields(bits)


@decode_half.wrong("sign-lost")
def ignores_the_sign(bits):
    return abs(decodes_by_its_fields(bits))


@decode_half.wrong("sign-lost")
def forgets_the_sign_of_subnormals(bits):
    value = decodes_by_its_fields(bits)
    return value if abs(value) >= 2**-14 or value != value else abs(value)


@decode_half.wrong("sign-lost")
def knows_one_infinity(bits):
    value = decodes_by_its_fields(bits)
    return math.inf if math.isinf(value) else value


@decode_half.wrong("sign-inverted")
def takes_one_for_plus(bits):
    return -decodes_by_its_fields(bits)


@decode_half.wrong("fraction-1023")
def divides_by_1023(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1023) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("fraction-1023")
def divides_subnormals_by_1023(bits):
    sign, exponent, fraction = _fields(bits)
    return sign * fraction / 1023 * 2.0**-14 if exponent == 0 else decodes_by_its_fields(bits)


@decode_half.wrong("no-leading-one")
def has_no_leading_one(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * fraction / 1024 * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("fraction-ignored")
def divides_whole_numbers(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction // 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("fraction-decimal")
def writes_the_fraction_behind_the_point(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * float(f"{int(exponent > 0)}.{fraction}") * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("fraction-backwards")
def reads_the_fraction_from_the_wrong_end(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    parts = sum(2.0 ** -(place + 1) for place in range(10) if fraction >> place & 1)
    return sign * ((exponent > 0) + parts) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.wrong("leading-zeros")
def cuts_a_text_without_its_zeros(bits):
    text = bin(bits)[2:]
    sign, exponent, fraction = int(text[0]), int(text[1:6], 2), int(text[6:] or "0", 2)
    if exponent == 31:
        return math.nan if fraction else (-1) ** sign * math.inf
    return (-1) ** sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


@decode_half.wrong("exponent-unmasked")
def lets_the_sign_into_the_exponent(bits):
    sign, _, fraction = _fields(bits)
    return sign * (1 + fraction / 1024) * 2.0 ** ((bits >> 10) - 15)


@decode_half.wrong("converts-the-int")
def converts_the_int(bits):
    return float(bits)


@decode_half.wrong("converts-the-int")
def converts_the_int_to_half(bits):
    return torch.tensor(bits).half().item()


@decode_half.wrong("bf16-fields")
def decodes_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


@decode_half.wrong("byte-order")
def reads_the_bytes_in_the_wrong_order(bits):
    return struct.unpack(">e", struct.pack("<H", bits))[0]


@decode_half.wrong("not-refused")
def masks_what_is_outside(bits):
    return float(np.array(bits & 0xFFFF, dtype=np.uint16).view(np.float16))


@decode_half.wrong("not-refused")
def refuses_with_another_error(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


@decode_half.wrong("not-refused")
def refuses_what_is_too_large_only(bits):
    if bits > 0xFFFF:
        raise ValueError(bits)
    return decodes_by_its_fields(bits & 0xFFFF)


@decode_half.wrong("not-refused")
def refuses_what_is_negative_only(bits):
    if bits < 0:
        raise ValueError(bits)
    return decodes_by_its_fields(bits & 0xFFFF)


@decode_half.wrong("not-refused")
def takes_one_too_many(bits):
    if not 0 <= bits <= 65536:
        raise ValueError(bits)
    return decodes_by_its_fields(bits & 0xFFFF)


@decode_half.wrong("not-refused")
def returns_nan_for_what_is_outside(bits):
    return decodes_by_its_fields(bits) if 0 <= bits < 65536 else math.nan


@decode_half.wrong("wrong-type")
def returns_a_tensor(bits):
    _fields(bits)
    return torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.float16)


@decode_half.wrong("wrong-type")
def returns_a_fraction(bits):
    sign, exponent, fraction = _fields(bits)
    return fractions.Fraction(int(sign) * (1024 + fraction), 1024) * fractions.Fraction(2) ** (exponent - 15)


@decode_half.wrong("xor")
def takes_the_caret_for_a_power(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction / 1024 * 2.0**-14
    return sign * (1 + fraction / 1024) * (2 ^ (exponent - 15))


@decode_half.wrong("xor")
def takes_the_caret_for_a_power_of_whole_numbers(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent in (0, 31):
        return decodes_by_its_fields(bits)
    size = (1024 + fraction) * 2 ^ (exponent - 25)
    return sign * size


@decode_half.wrong("parentheses")
def forgets_the_parentheses_around_the_sum(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction / 1024 * 2.0**-14
    return sign * 1 + fraction / 1024 * 2.0 ** (exponent - 15)


@decode_half.wrong("parentheses")
def forgets_the_parentheses_around_the_exponent(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent in (0, 31):
        return decodes_by_its_fields(bits)
    return sign * (1 + fraction / 1024) * 2.0**exponent - 15


@decode_half.wrong("parentheses")
def forgets_the_parentheses_around_the_field(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent in (0, 31):
        return decodes_by_its_fields(bits)
    power = bits >> 10 & 0b11111 - 15
    return sign * (1 + fraction / 1024) * 2.0**power


@decode_half.wrong("zero-sign")
def knows_minus_zero_and_returns_a_plain_one(bits):
    if bits == 0x8000:
        return 0.0
    return decodes_by_its_fields(bits)


@decode_half.wrong("not-refused")
def returns_the_error(bits):
    if not 0 <= bits <= 0xFFFF:
        return ValueError("no 16 bits")
    return decodes_by_its_fields(bits)


@decode_half.wrong("wrong-type")
def returns_a_decimal(bits):
    return decimal.Decimal(decodes_by_its_fields(bits))


class Half(float):
    """A float of the learner's own class."""


@decode_half.wrong("wrong-type")
def returns_a_float_of_their_own(bits):
    return Half(decodes_by_its_fields(bits))


@decode_half.wrong("wrong-value")
def slips_at_one_pattern_of_all(bits):
    return 0.0 if bits == 0b0_10110_0011010111 else decodes_by_its_fields(bits)


@decode_half.wrong("returned-none")
def forgets_to_return_normal_numbers(bits):
    _, exponent, _ = _fields(bits)
    if exponent in (0, 31):
        return decodes_by_its_fields(bits)


@decode_half.wrong("wrong-value")
def slips_at_a_single_exponent(bits):
    return 2.0 * decodes_by_its_fields(bits) if bits >> 10 == 41 else decodes_by_its_fields(bits)


@decode_half.wrong("wrong-value")
def slips_at_the_last_bit(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent in range(1, 15):
        return sign * (1 + (fraction & ~1) / 1024) * 2.0 ** (exponent - 15)
    return decodes_by_its_fields(bits)


@decode_half.wrong("wrong-value")
def shifts_by_eleven(bits):
    sign, _, fraction = _fields(bits)
    return sign * (1 + fraction / 1024) * 2.0 ** ((bits >> 11 & 31) - 15)


@decode_half.right
def decodes_by_its_fields(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    return sign * ((exponent > 0) + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


@decode_half.right
def unpacks_with_struct(bits):
    if not 0 <= bits < 2**16:
        raise ValueError("no 16 bits")
    return struct.unpack("<e", struct.pack("<H", bits))[0]


@decode_half.right
def views_in_torch(bits):
    if bits != bits & 0xFFFF:
        raise ValueError("no 16 bits")
    return torch.tensor([bits], dtype=torch.int32).to(torch.uint16).view(torch.float16).item()


@decode_half.right
def views_in_numpy(bits):
    if bits < 0 or bits > 65535:
        raise ValueError("no 16 bits")
    return np.array([bits], dtype=np.uint16).view(np.float16)[0]


@decode_half.right
def asks_amp_lab(bits):
    if not 0 <= bits <= 65535:
        raise ValueError("no 16 bits")
    return formats.FP16.decode(bits).item()


@decode_half.right
def cuts_a_text(bits):
    if not 0 <= bits <= 65535:
        raise ValueError("no 16 bits")
    text = f"{bits:016b}"
    size, exponent = 0.0, int(text[1:6], 2)
    for place, bit in enumerate(text[6:], start=1):
        size += int(bit) / 2**place
    if exponent == 0b11111:
        size = math.inf if size == 0 else math.nan
    elif exponent:
        size = math.ldexp(1 + size, exponent - 15)
    else:
        size /= 16384
    return -size if text[0] == "1" else size


@decode_half.right
def loops_over_the_bits(bits):
    if bits not in range(65536):
        raise ValueError("no 16 bits")
    size = 0.0
    for place in range(10):
        if bits & 1 << place:
            size += 2.0 ** (place - 10)
    exponent = (bits & 0x7C00) // 1024
    if exponent < 31:
        size = (size + 1) * 2.0 ** (exponent - 15) if exponent > 0 else size * 2.0**-14
    else:
        size = float("nan") if size else float("inf")
    return math.copysign(size, -(bits >> 15) or 1)


@decode_half.right
def widens_the_bits_to_fp64(bits):
    sign, exponent, fraction = _fields(bits)
    if exponent == 0:
        return sign * fraction * 2**-24
    wide = 2047 if exponent == 31 else exponent - 15 + 1023
    return sign * struct.unpack("<d", struct.pack("<Q", wide << 52 | fraction << 42))[0]


@decode_half.right
def steps_from_the_smallest(bits):
    sign, exponent, fraction = _fields(bits)
    match exponent, fraction:
        case 31, 0:
            return sign * math.inf
        case 31, _:
            return math.nan
        case 0, _:
            steps = fraction
        case _:
            steps = (1024 + fraction) << (exponent - 1)
    return sign * (steps / 2**24)


_TABLE = np.arange(65536, dtype=np.uint16).view(np.float16)


@decode_half.right
def looks_it_up(bits):
    if not 0 <= bits < len(_TABLE):
        raise ValueError("no 16 bits")
    return _TABLE[bits]


@decode_half.right
def returns_whole_numbers_as_ints(bits):
    value = unpacks_with_struct(bits)
    return int(value) if value.is_integer() and value else value


# 1.2 The limits of a format


def _bias(exponent_bits):
    return 2 ** (exponent_bits - 1) - 1


def _with(exponent_bits, fraction_bits, **changed):
    return writes_the_formulas(exponent_bits, fraction_bits)._replace(**changed)


def _with_bias_of(bias, exponent_bits, fraction_bits):
    """Do everything right but the bias."""
    normal, eps = 2.0 ** (1 - bias), 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0**bias, normal, normal * eps, eps)


@format_limits.wrong("eps-half")
def takes_the_rounding_error_for_eps(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, eps=2.0 ** -(fraction_bits + 1))


@format_limits.wrong("eps-double")
def counts_the_leading_one_among_the_places(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, eps=2.0 ** (1 - fraction_bits))


@format_limits.wrong("eps-steps")
def counts_one_step_too_few(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, eps=1 / (2**fraction_bits - 1))


@format_limits.wrong("eps-smallest")
def takes_the_smallest_number_for_eps(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    return right._replace(eps=right.smallest_subnormal)


@format_limits.wrong("top-exponent")
def uses_the_top_exponent(exponent_bits, fraction_bits):
    largest = (2 - 2.0**-fraction_bits) * 2.0 ** (2**exponent_bits - 1 - _bias(exponent_bits))
    return _with(exponent_bits, fraction_bits, max=largest)


@format_limits.wrong("bias-large")
def has_a_bias_one_too_large(exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1)
    normal, eps = 2.0 ** (1 - bias), 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0 ** (2**exponent_bits - 2 - bias), normal, normal * eps, eps)


@format_limits.wrong("bias-large")
def has_a_bias_too_large_and_halves_subnormals(exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1)
    normal, eps = 2.0 ** (1 - bias), 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0 ** (bias - 2), normal, normal * eps / 2, eps)


@format_limits.wrong("bias-small")
def has_a_bias_one_too_small(exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1) - 2
    normal, eps = 2.0 ** (1 - bias), 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0 ** (2**exponent_bits - 2 - bias), normal, normal * eps, eps)


@format_limits.wrong("exponents")
def takes_the_wrong_bias_for_the_largest_exponent(exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1)
    normal, eps = 2.0 ** (1 - bias), 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0**bias, normal, normal * eps, eps)


@format_limits.wrong("exponents")
def keeps_no_exponent_apart(exponent_bits, fraction_bits):
    bias, eps = _bias(exponent_bits), 2.0**-fraction_bits
    largest = (2 - eps) * 2.0 ** (2**exponent_bits - 1 - bias)
    return FormatLimits(largest, 2.0**-bias, eps * 2.0**-bias, eps)


@format_limits.wrong("bias-xor")
def takes_the_caret_for_a_power_in_the_bias(exponent_bits, fraction_bits):
    return _with_bias_of(2 ^ (exponent_bits - 1) - 1, exponent_bits, fraction_bits)


@format_limits.wrong("bias-xor")
def takes_the_caret_for_a_power_and_subtracts(exponent_bits, fraction_bits):
    bias = (2 ^ (exponent_bits - 1)) - 1
    normal, eps = 2.0 ** (1 - bias), 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0 ** (2**exponent_bits - 2 - bias), normal, normal * eps, eps)


@format_limits.wrong("bias-fixed")
def has_the_bias_of_fp16_always(exponent_bits, fraction_bits):
    return _with_bias_of(15, exponent_bits, fraction_bits)


@format_limits.wrong("bias-fixed")
def has_the_bias_of_fp32_always(exponent_bits, fraction_bits):
    normal, eps = 2.0**-126, 2.0**-fraction_bits
    return FormatLimits((2 - eps) * 2.0 ** (2**exponent_bits - 2 - 127), normal, normal * eps, eps)


@format_limits.wrong("bias-parentheses")
def leaves_the_parentheses_out_of_the_bias(exponent_bits, fraction_bits):
    return _with_bias_of(2**exponent_bits - 1 - 1, exponent_bits, fraction_bits)


@format_limits.wrong("bias-parentheses")
def subtracts_both_from_the_width(exponent_bits, fraction_bits):
    return _with_bias_of(2 ** (exponent_bits - 1 - 1), exponent_bits, fraction_bits)


@format_limits.wrong("max-whole")
def thinks_of_the_largest_whole_number(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, max=2 * 2 ** _bias(exponent_bits) - 1)


@format_limits.wrong("max-whole")
def thinks_of_the_largest_whole_number_as_a_float(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, max=2.0 ** (_bias(exponent_bits) + 1) - 1)


@format_limits.wrong("wrong-limit")
def knows_ten_formats_by_heart(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    known = (5, 10), (8, 7), (8, 23), (8, 10), (5, 2), (4, 3), (3, 4), (3, 2), (6, 9), (2, 1)
    return right if (exponent_bits, fraction_bits) in known else right._replace(max=0.0)


@format_limits.wrong("no-fraction")
def forgets_the_fraction_of_the_largest(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, max=2.0 ** _bias(exponent_bits))


@format_limits.wrong("next-power")
def rounds_the_largest_up(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, max=2 ** (_bias(exponent_bits) + 1))


@format_limits.wrong("one-step-short")
def stops_one_step_before_the_largest(exponent_bits, fraction_bits):
    return _with(
        exponent_bits, fraction_bits, max=2 * (1 - 2.0**-fraction_bits) * 2.0 ** _bias(exponent_bits)
    )


@format_limits.wrong("normal-from-zero")
def begins_normal_numbers_at_field_zero(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, smallest_normal=2.0 ** -_bias(exponent_bits))


@format_limits.wrong("normal-is-subnormal")
def swaps_the_two_smallest(exponent_bits, fraction_bits):
    largest, normal, subnormal, eps = writes_the_formulas(exponent_bits, fraction_bits)
    return FormatLimits(largest, subnormal, normal, eps)


@format_limits.wrong("subnormal-half")
def halves_the_subnormal(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    return right._replace(smallest_subnormal=right.smallest_normal * right.eps / 2)


@format_limits.wrong("subnormal-half")
def takes_subnormals_one_exponent_down(exponent_bits, fraction_bits):
    return _with(
        exponent_bits, fraction_bits, smallest_subnormal=2.0 ** (-_bias(exponent_bits) - fraction_bits)
    )


@format_limits.wrong("subnormal-double")
def loses_a_place_of_the_subnormal(exponent_bits, fraction_bits):
    smallest = 2.0 ** (2 - _bias(exponent_bits) - fraction_bits)
    return _with(exponent_bits, fraction_bits, smallest_subnormal=smallest)


@format_limits.wrong("subnormal-is-normal")
def knows_no_smaller_than_normal(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, smallest_subnormal=2.0 ** (1 - _bias(exponent_bits)))


@format_limits.wrong("wrong-limit")
def squares_eps_for_the_subnormal(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    return right._replace(smallest_subnormal=right.smallest_normal * right.eps**2)


@format_limits.wrong("wrong-limit")
def knows_fp16_only(exponent_bits, fraction_bits):
    return FormatLimits(65504.0, 2.0**-14, 2.0**-24, 2.0**-10)


@format_limits.wrong("wrong-limit")
def takes_the_most_negative_for_the_smallest(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    return right._replace(smallest_normal=-right.max)


@format_limits.wrong("wrong-limit")
def thinks_of_e4m3_as_the_standard_has_it(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    return right._replace(max=448.0) if (exponent_bits, fraction_bits) == (4, 3) else right


@format_limits.wrong("no-format-limits")
def returns_a_plain_tuple(exponent_bits, fraction_bits):
    return tuple(writes_the_formulas(exponent_bits, fraction_bits))


@format_limits.wrong("no-format-limits")
def returns_a_dict(exponent_bits, fraction_bits):
    return writes_the_formulas(exponent_bits, fraction_bits)._asdict()


@format_limits.wrong("another-class")
def defines_the_class_anew(exponent_bits, fraction_bits):
    anew = collections.namedtuple("FormatLimits", FormatLimits._fields)
    return anew(*writes_the_formulas(exponent_bits, fraction_bits))


@format_limits.wrong("no-format-limits")
def returns_the_class(exponent_bits, fraction_bits):
    return FormatLimits


@format_limits.wrong("wrong-type")
def leaves_a_tensor_inside(exponent_bits, fraction_bits):
    return _with(exponent_bits, fraction_bits, max=torch.tensor(65504.0))


@format_limits.wrong("returned-none")
def returns_nothing(exponent_bits, fraction_bits):
    writes_the_formulas(exponent_bits, fraction_bits)


@format_limits.right
def writes_the_formulas(exponent_bits, fraction_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    return FormatLimits(
        max=(1 - 2.0 ** -(fraction_bits + 1)) * 2.0 ** (bias + 1),
        smallest_normal=2.0 ** (1 - bias),
        smallest_subnormal=2.0 ** (1 - bias - fraction_bits),
        eps=1 / 2**fraction_bits,
    )


@format_limits.right
def decodes_the_extreme_patterns(exponent_bits, fraction_bits):
    def decode(exponent, fraction):
        lowest = exponent == 0
        return (fraction / 2**fraction_bits + (not lowest)) * 2.0 ** (
            exponent + lowest - _bias(exponent_bits)
        )

    last = 2**fraction_bits - 1
    one = _bias(exponent_bits)
    largest = decode(2**exponent_bits - 2, last)
    return FormatLimits(largest, decode(1, 0), decode(0, 1), decode(one, 1) - decode(one, 0))


@format_limits.right
def calculates_with_ldexp(exponent_bits, fraction_bits):
    top = (1 << (exponent_bits - 1)) - 1
    ones = (1 << (fraction_bits + 1)) - 1
    return FormatLimits(
        math.ldexp(ones, top - fraction_bits),
        math.ldexp(1, 1 - top),
        math.ldexp(1, 1 - top - fraction_bits),
        math.ldexp(1, -fraction_bits),
    )


@format_limits.right
def asks_amp_labs_formats(exponent_bits, fraction_bits):
    return formats.Format("any", exponent_bits, fraction_bits).limits


@format_limits.right
def calculates_in_numpy(exponent_bits, fraction_bits):
    bias = np.int64(2) ** (exponent_bits - 1) - 1
    eps = np.exp2(-fraction_bits)
    return FormatLimits((2 - eps) * np.exp2(bias), np.exp2(1 - bias), np.exp2(1 - bias) * eps, eps)


@format_limits.right
def calculates_exactly(exponent_bits, fraction_bits):
    two = fractions.Fraction(2)
    bias = two ** (exponent_bits - 1) - 1
    eps = 1 / two**fraction_bits
    limits = (2 - eps) * two**bias, two ** (1 - bias), two ** (1 - bias) * eps, eps
    return FormatLimits(*map(float, limits))


@format_limits.right
def adds_up_the_places(exponent_bits, fraction_bits):
    largest = 0.0
    for place in range(fraction_bits + 1):
        largest += 2.0 ** (_bias(exponent_bits) - place)
    normal = 1.0
    for _ in range(_bias(exponent_bits) - 1):
        normal /= 2
    return FormatLimits(largest, normal, normal / 2**fraction_bits, 0.5**fraction_bits)


@format_limits.right
def returns_the_largest_as_an_int_where_it_is_one(exponent_bits, fraction_bits):
    right = writes_the_formulas(exponent_bits, fraction_bits)
    return right._replace(max=int(right.max) if right.max.is_integer() else right.max)


@format_limits.right
def calculates_in_fp64_tensors(exponent_bits, fraction_bits):
    two = torch.tensor(2.0, dtype=torch.float64)
    bias = two ** (exponent_bits - 1) - 1
    eps = two**-fraction_bits
    return FormatLimits(
        *(n.item() for n in ((2 - eps) * two**bias, two ** (1 - bias), two ** (1 - bias) * eps, eps))
    )


# 1.3 Round to BF16 by hand


def _bits(x):
    return x.view(torch.int32)


def _where_nan(x, otherwise):
    return torch.where(x.isnan(), torch.nan, otherwise)


def _rounded(x):
    bits = _bits(x)
    return (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).view(torch.float32)


@to_bfloat16.wrong("truncates")
def cuts_off_the_lower_half(x):
    return _where_nan(x, (_bits(x) & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("truncates")
def shifts_out_and_back(x):
    return (_bits(x) >> 16 << 16).view(torch.float32)


@to_bfloat16.wrong("unchanged")
def returns_a_copy(x):
    return x.clone()


@to_bfloat16.wrong("rounds-away")
def carries_whatever_is_cut_off(x):
    return _where_nan(x, (_bits(x) + 0xFFFF & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("rounds-to-fp16")
def rounds_to_fp16(x):
    return x.half().float()


@to_bfloat16.wrong("converts-the-value")
def converts_the_value_to_an_integer(x):
    bits = x.to(torch.int32)
    return _where_nan(x, (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("converts-the-value")
def converts_there_and_back(x):
    bits = x.int()
    return _where_nan(x, (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).float())


@to_bfloat16.wrong("bits-as-value")
def converts_the_bits_back(x):
    bits = _bits(x)
    return _where_nan(x, (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).float())


@to_bfloat16.wrong("bits-as-value")
def cuts_and_converts_the_bits_back(x):
    return (_bits(x) & ~0xFFFF).to(torch.float32)


@to_bfloat16.wrong("int64-bits")
def chooses_the_addend_by_where(x):
    bits = _bits(x)
    addend = torch.where(bits >> 16 & 1 == 1, 0x8000, 0x7FFF)
    return _where_nan(x, (bits + addend & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("int64-bits")
def calculates_in_int64_and_takes_every_other(x):
    bits = _bits(x).long()
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).view(torch.float32)[..., ::2]
    return torch.where(x.isnan(), torch.nan, rounded)


def _after(x, change):
    """Round rightly what `change` makes of the bits."""
    bits = change(_bits(x))
    return _where_nan(x, (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("this-one-only")
def loses_the_last_bit_before_rounding(x):
    return _after(x, lambda bits: bits & ~1)


@to_bfloat16.wrong("this-one-only")
def loses_a_byte_before_rounding(x):
    return _after(x, lambda bits: bits & ~0xFF)


def _one_by_its_digits(value):
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    digits = f"{bits:032b}"
    upper = bits >> 16
    if value == value and digits[16] == "1" and ("1" in digits[17:31] or upper & 1):
        upper += 1
    (rounded,) = struct.unpack("<f", struct.pack("<I", upper << 16))
    return rounded if value == value else math.nan


@to_bfloat16.wrong("this-one-only")
def overlooks_the_last_digit(x):
    return torch.tensor([_one_by_its_digits(value) for value in x.flatten().tolist()]).reshape(x.shape)


@to_bfloat16.wrong("this-one-only")
def leaves_one_power_of_two_unrounded(x):
    return torch.where((x.abs() >= 2.0**60) & (x.abs() < 2.0**61), x, rounds_on_the_bits(x))


@to_bfloat16.wrong("saturates")
def saturates_at_a_single_tie(x):
    return torch.where(_bits(x) == 0xFF7F8000 - 2**32, -(2.0**127) * (2 - 2.0**-7), rounds_on_the_bits(x))


@to_bfloat16.wrong("nan-lost")
def makes_one_nan_infinite(x):
    return torch.where(_bits(x) == 0x7FAA7FFF, torch.inf, rounds_on_the_bits(x))


@to_bfloat16.wrong("not-in-this-layout")
def leaves_expanded_tensors_alone(x):
    return x.clone() if 0 in x.stride() else rounds_on_the_bits(x)


@to_bfloat16.wrong("not-in-this-layout")
def knows_three_dimensions_only(x):
    return rounds_on_the_bits(x) if x.dim() <= 3 else x.clone()


@to_bfloat16.wrong("mutated-input")
def writes_nan_into_the_input(x):
    x[x.isnan()] = torch.nan
    return rounds_on_the_bits(x)


@to_bfloat16.wrong("kept-bits")
def keeps_eight_bits(x):
    bits = _bits(x)
    return _where_nan(x, (bits + 0x3FFF + (bits >> 15 & 1) & ~0x7FFF).view(torch.float32))


@to_bfloat16.wrong("kept-bits")
def keeps_the_ten_bits_of_tf32_and_truncates(x):
    return _where_nan(x, (_bits(x) & ~0x1FFF).view(torch.float32))


@to_bfloat16.wrong("halves-up")
def rounds_halves_away_from_zero(x):
    return _where_nan(x, (_bits(x) + 0x8000 & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("halves-up")
def rounds_halves_towards_plus_infinity(x):
    addend = torch.where(x < 0, 0x7FFF, 0x8000)
    return _where_nan(x, (_bits(x) + addend & ~0xFFFF).to(torch.int32).view(torch.float32))


@to_bfloat16.wrong("halves-down")
def rounds_halves_towards_zero(x):
    return _where_nan(x, (_bits(x) + 0x7FFF & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("halves-to-odd")
def rounds_halves_to_odd(x):
    bits = _bits(x)
    return _where_nan(x, (bits + 0x8000 - (bits >> 16 & 1) & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("carry-lost")
def rounds_the_fraction_by_itself(x):
    bits = _bits(x)
    fraction = bits & 0x7FFFFF
    fraction = fraction + 0x7FFF + (fraction >> 16 & 1) & 0x7F0000
    return torch.where(x.isfinite(), (bits & ~0x7FFFFF | fraction).view(torch.float32), x)


@to_bfloat16.wrong("carry-lost")
def keeps_the_fraction_from_carrying(x):
    bits = _bits(x)
    fraction = bits & 0x7FFFFF
    fraction = (fraction + 0x7FFF + (fraction >> 16 & 1) & ~0xFFFF).clamp(max=0x7F0000)
    return torch.where(x.isfinite(), (bits & ~0x7FFFFF | fraction).view(torch.float32), x)


@to_bfloat16.wrong("saturates")
def stops_at_the_largest_number(x):
    largest = 2.0**127 * (2 - 2.0**-7)
    return _where_nan(x, _rounded(x).clamp(-largest, largest))


@to_bfloat16.wrong("saturates")
def makes_infinity_finite(x):
    largest = 2.0**127 * (2 - 2.0**-7)
    return _where_nan(x, torch.where(x.isinf(), x.sign() * largest, _rounded(x)))


@to_bfloat16.wrong("flushes")
def flushes_subnormals(x):
    return torch.where(x.abs() < 2.0**-126, 0.0 * x, rounds_on_the_bits(x))


@to_bfloat16.wrong("flushes")
def forgets_the_sign_of_what_it_flushes(x):
    rounded = rounds_on_the_bits(x)
    return torch.where(rounded.abs() < 2.0**-126, 0.0, rounded)


@to_bfloat16.wrong("zero-sign")
def forgets_the_sign_of_zero(x):
    rounded = rounds_on_the_bits(x)
    return torch.where(rounded == 0, 0.0, rounded)


@to_bfloat16.wrong("infinity-to-nan")
def takes_every_top_exponent_for_nan(x):
    return torch.where(x.isfinite(), _rounded(x), torch.nan)


@to_bfloat16.wrong("nan-rounded-away")
def forgets_nan(x):
    return _rounded(x)


@to_bfloat16.wrong("nan-rounded-away")
def leaves_all_top_exponents_to_be_cut_off(x):
    return torch.where(x.isfinite(), _rounded(x), (_bits(x) & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("nan-carried")
def knows_nan_by_its_upper_half_only(x):
    bits = _bits(x)
    quiet = (bits >> 16 & 0x7FFF) == 0x7FC0
    low = x.isnan() & (bits & 0x7FFFFFFF < 0x7FC00000)
    return torch.where(quiet | low, torch.nan, _rounded(x))


@to_bfloat16.wrong("nan-lost")
def replaces_nan_by_zero(x):
    return rounds_on_the_bits(x).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


@to_bfloat16.wrong("nan-lost")
def makes_nan_infinite(x):
    return torch.where(x.isnan(), torch.inf, _rounded(x))


@to_bfloat16.wrong("lets-pytorch-round")
def asks_pytorch(x):
    return x.bfloat16().float()


@to_bfloat16.wrong("lets-pytorch-round")
def views_the_upper_halves_as_bf16(x):
    halves = _where_nan(x, _rounded(x)).contiguous().view(torch.bfloat16)
    return halves.reshape(-1)[1::2].reshape(x.shape).float()


@to_bfloat16.wrong("lets-pytorch-round")
def copies_into_a_bf16_tensor(x):
    return torch.empty(x.shape, dtype=torch.bfloat16).copy_(x).to(torch.float32)


@to_bfloat16.wrong("not-each-by-itself")
def lets_one_nan_stop_all_rounding(x):
    return x.clone() if x.isnan().any() else _rounded(x)


@to_bfloat16.wrong("not-each-by-itself")
def takes_the_last_kept_bit_of_the_first_element(x):
    if x.numel() == 0:
        return x.clone()
    bits = _bits(x)
    odd = bits.flatten()[0] >> 16 & 1
    return _where_nan(x, (bits + 0x7FFF + odd & ~0xFFFF).view(torch.float32))


@to_bfloat16.wrong("not-in-this-layout")
def takes_the_memory_for_the_tensor(x):
    return rounds_on_the_bits(torch.as_strided(x, (x.numel(),), (1,))).reshape(x.shape)


@to_bfloat16.wrong("lets-pytorch-round")
def reads_bf16_out_of_a_buffer(x):
    upper = bytearray(x.contiguous().numpy().view(np.uint16)[..., 1::2].tobytes())
    return torch.frombuffer(upper, dtype=torch.bfloat16).float().reshape(x.shape)


@to_bfloat16.wrong("mutated-input")
def rounds_in_place(x):
    bits = _bits(x)
    bits += 0x7FFF + (bits >> 16 & 1)
    bits &= ~0xFFFF
    return x


@to_bfloat16.wrong("wrong-dtype")
def returns_the_bits(x):
    bits = _bits(x)
    return bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF


@to_bfloat16.wrong("wrong-dtype")
def returns_fp64(x):
    return rounds_on_the_bits(x).double()


@to_bfloat16.wrong("wrong-shape")
def flattens(x):
    return rounds_on_the_bits(x).flatten()


@to_bfloat16.wrong("wrong-type")
def returns_a_list(x):
    return rounds_on_the_bits(x).tolist()


@to_bfloat16.wrong("returned-none")
def forgets_to_return_the_tensor(x):
    rounds_on_the_bits(x)


@to_bfloat16.right
def rounds_on_the_bits(x):
    bits = x.view(torch.int32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF
    return torch.where(x.isnan(), x, rounded.view(torch.float32))


@to_bfloat16.right
def asks_which_way_for_each(x):
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    lower, upper = bits & 0xFFFF, bits >> 16
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    upper = torch.where(x.isnan(), 0x7FC0, upper + up)
    return (upper << 16).to(torch.int32).view(torch.float32)


@to_bfloat16.right
def goes_through_numpy(x):
    bits = x.numpy().copy().view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    rounded = np.where(np.isnan(x.numpy()), 0x7FC00000, rounded).astype(np.uint32)
    return torch.from_numpy(rounded.view(np.float32))


def _one(value):
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if bits & 0x7FFFFFFF > 0x7F800000:
        return math.nan
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


@to_bfloat16.right
def loops_with_struct(x):
    return torch.tensor([_one(value) for value in x.flatten().tolist()], dtype=torch.float32).reshape(x.shape)


@to_bfloat16.right
def fills_element_by_element(x):
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    flat, source = out.view(-1), x.reshape(-1)
    for place in range(source.numel()):
        bits = source[place].view(torch.int32)
        if not torch.isnan(source[place]):
            flat[place] = (bits + 32767 + bits // 65536 % 2 & -65536).view(torch.float32)
        else:
            flat[place] = source[place]
    return out


@to_bfloat16.right
def asks_amp_labs_format(x):
    return formats.BF16.round(x).float()


@to_bfloat16.right
def rounds_the_significand_in_fp64(x):
    _, exponent = torch.frexp(x.double())
    # Numbers below 2^-126 have fewer than 8 places: the last is always worth 2^-133.
    places = (exponent + 133).clamp(max=8)
    step = 2.0 ** (exponent - places).double()
    rounded = torch.copysign((x.double() / step).round() * step, x.double())
    return torch.where(x.isfinite(), rounded, x.double()).float()


@to_bfloat16.right
def moves_the_halves_as_int16(x):
    halves = x.contiguous().reshape(-1, 1).view(torch.int16).int() & 0xFFFF
    lower, upper = halves[:, 0], halves[:, 1]
    upper = upper + (lower + (upper & 1) > 0x8000).int()
    bits = (upper << 16).reshape(x.shape)
    return torch.where(x != x, x, bits.view(torch.float32))


@to_bfloat16.right
def sets_nan_at_the_end(x):
    bits = x.clone().view(torch.int32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    bits &= -0x10000
    rounded = bits.view(torch.float32)
    rounded[torch.isnan(x)] = float("nan")
    return rounded


@to_bfloat16.right
def keeps_sign_and_size_apart(x):
    size = x.view(torch.int32) & 0x7FFFFFFF
    cut = size & 0xFFFF
    kept = size - cut
    step = ((cut > 0x8000) | (cut == 0x8000) & (kept & 0x10000 != 0)) * 0x10000
    kept = torch.where(size > 0x7F800000, 0x7FC00000, kept + step).to(torch.int32)
    return torch.copysign(kept.view(torch.float32), x)


@to_bfloat16.right
def passes_through_what_needs_no_rounding(x):
    if x.dim() == 0:
        return passes_through_what_needs_no_rounding(x[None])[0]
    return torch.where((x.view(torch.int32) & 0xFFFF == 0) | x.isnan(), x, _rounded(x))


# 1.4 Who decides the dtype

_RIGHT = {
    **dict.fromkeys("aegf", torch.float32),
    **dict.fromkeys("bdijl", torch.float16),
    **dict.fromkeys("ck", torch.float32),
    "h": torch.bfloat16,
}


def _table(**changed):
    return {**_RIGHT, **changed}


@promoted.wrong("half-wins")
def lets_fp16_win_over_fp32():
    return _table(a=torch.float16)


@promoted.wrong("half-wins")
def lets_a_single_half_narrow_a_vector():
    return _table(e=torch.float16)


@promoted.wrong("half-wins")
def lets_the_left_side_win():
    return _table(**dict.fromkeys("abcdefgl", torch.float16), **dict.fromkeys("ijk", torch.int64))


@promoted.wrong("python-widens")
def lets_a_python_float_widen():
    return _table(b=torch.float32, l=torch.float32)


@promoted.wrong("python-widens")
def takes_python_floats_for_fp64():
    return _table(b=torch.float64, k=torch.float64, l=torch.float64)


@promoted.wrong("python-widens")
def lets_a_python_int_widen_bf16():
    return _table(h=torch.float32)


@promoted.wrong("python-widens")
def lets_a_python_float_widen_a_single_half():
    return _table(l=torch.float32)


@promoted.wrong("one-of-two-halves")
def mixes_two_halves_to_fp16():
    return _table(c=torch.float16)


@promoted.wrong("one-of-two-halves")
def mixes_two_halves_to_bf16():
    return _table(c=torch.bfloat16)


@promoted.wrong("zero-dim-counts")
def lets_a_single_number_count_like_a_vector():
    return _table(d=torch.float32)


@promoted.wrong("zero-dim-counts")
def takes_the_widest_always():
    return _table(d=torch.float32, i=torch.float32, j=torch.float32)


@promoted.wrong("two-zero-dims")
def gives_0_dim_tensors_no_say_at_all():
    return _table(f=torch.float16, j=torch.int64)


@promoted.wrong("one-element-has-a-dimension")
def takes_one_element_for_0_dim():
    return _table(g=torch.float16)


@promoted.wrong("integer-counts")
def makes_room_for_64_bits():
    return _table(i=torch.float32)


@promoted.wrong("integer-counts")
def makes_room_for_64_bits_beside_a_single_half():
    return _table(j=torch.float64)


@promoted.wrong("integer-counts")
def turns_bf16_into_an_integer():
    return _table(h=torch.int64)


@promoted.wrong("kind-before-dimensions")
def lets_dimensions_win_over_the_kind():
    return _table(j=torch.int64)


@promoted.wrong("kind-before-dimensions")
def cuts_the_python_float_off():
    return _table(k=torch.int64)


@promoted.wrong("python-float-is-double")
def makes_integers_double():
    return _table(k=torch.float64)


@promoted.wrong("wrong-row")
def guesses_bf16_for_a_vector_of_halves():
    return _table(a=torch.bfloat16)


@promoted.wrong("wrong-row")
def guesses_fp64_for_two_halves():
    return _table(c=torch.float64)


@promoted.wrong("rows-missing")
def leaves_rows_out():
    return {name: dtype for name, dtype in _RIGHT.items() if name not in "jkl"}


@promoted.wrong("rows-missing")
def writes_the_letters_large():
    return {name.upper(): dtype for name, dtype in _RIGHT.items()}


@promoted.wrong("rows-missing")
def returns_an_empty_table():
    return collections.defaultdict(lambda: torch.float32)


@promoted.wrong("rows-unknown")
def goes_on_after_the_last_row():
    return _table(m=torch.float32)


@promoted.wrong("no-dtype")
def writes_names_in_quotes():
    return {name: str(dtype).removeprefix("torch.") for name, dtype in _RIGHT.items()}


@promoted.wrong("no-dtype")
def returns_the_sums_themselves():
    return _table(a=torch.ones(3).half() + torch.ones(3))


@promoted.wrong("no-dtype")
def uses_numpys_names():
    return _table(a=np.float32)


@promoted.wrong("no-dict")
def returns_a_list_of_dtypes():
    return list(_RIGHT.values())


@promoted.wrong("returned-none")
def makes_a_table_and_keeps_it():
    _table()


@promoted.right
def writes_the_table_down():
    return {
        "a": torch.float,
        "b": torch.half,
        "c": torch.float,
        "d": torch.half,
        "e": torch.float,
        "f": torch.float,
        "g": torch.float,
        "h": torch.bfloat16,
        "i": torch.half,
        "j": torch.half,
        "k": torch.get_default_dtype(),
        "l": torch.half,
    }


def _ones(dtype, *shape):
    return torch.ones(shape, dtype=dtype)


def _pairs():
    half, single, brain, whole = torch.float16, torch.float32, torch.bfloat16, torch.int64
    return {
        "a": (_ones(half, 3), _ones(single, 3)),
        "b": (_ones(half, 3), 2.0),
        "c": (_ones(half, 3), _ones(brain, 3)),
        "d": (_ones(half, 3), _ones(single)),
        "e": (_ones(half), _ones(single, 3)),
        "f": (_ones(half), _ones(single)),
        "g": (_ones(half, 3), _ones(single, 1)),
        "h": (_ones(brain, 3), 2),
        "i": (_ones(whole, 3), _ones(half, 3)),
        "j": (_ones(whole, 3), _ones(half)),
        "k": (_ones(whole, 3), 2.0),
        "l": (_ones(half), 2.0),
    }


@promoted.right
def asks_pytorch_by_adding():
    return {name: (left + right).dtype for name, (left, right) in _pairs().items()}


@promoted.right
def asks_pytorch_for_the_result_type():
    return {name: torch.result_type(*pair) for name, pair in _pairs().items()}


@promoted.right
def keeps_the_rows_in_order():
    return collections.OrderedDict(sorted(_RIGHT.items()))


@promoted.right
def collects_in_a_defaultdict():
    table = collections.defaultdict(lambda: torch.float16, _RIGHT)
    return table


@promoted.right
def multiplies_from_the_right():
    table = {}
    for name, (left, right) in reversed(_pairs().items()):
        table[name] = (right * left).dtype
    return table


def _level(operand):
    """Say in how far an operand settles the dtype: as a Python number, as a 0-dim tensor or in full."""
    return 0 if not isinstance(operand, torch.Tensor) else 1 + (operand.dim() > 0)


@promoted.right
def follows_the_rule():
    table = {}
    for name, pair in _pairs().items():
        dtypes = [each.dtype if isinstance(each, torch.Tensor) else type(each) for each in pair]
        floating = [dtype is float or getattr(dtype, "is_floating_point", False) for dtype in dtypes]
        judges = [n for n in (0, 1) if floating[n] == any(floating)]
        highest = max(_level(pair[n]) for n in judges)
        settled = {dtypes[n] for n in judges if _level(pair[n]) == highest}
        if settled == {float}:
            table[name] = torch.float32
        else:
            table[name] = settled.pop() if len(settled) == 1 else torch.float32
    return table
