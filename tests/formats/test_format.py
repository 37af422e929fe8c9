"""What is known of the formats: facts from the standards, written out, and what a `Format` refuses to be."""

import math

import pytest
import torch

from amp_lab import formats
from amp_lab.formats import (
    BF16,
    FP8_E4M3,
    FP8_E4M3_OCP,
    FP8_E5M2,
    FP16,
    FP32,
    FP64,
    TF32,
    Fields,
    Format,
    FormatLimits,
)

E4M3S = (FP8_E4M3, FP8_E4M3_OCP)
SATURATING = Format("E5M2, saturating", 5, 2, saturates=True)
NAMES = "FP64 FP32 TF32 FP16 BF16 FP8_E4M3 FP8_E4M3_OCP FP8_E5M2"


def test_all_are_there_in_order():
    assert tuple(getattr(formats, name) for name in NAMES.split()) == formats.ALL
    assert len({format.name for format in formats.ALL}) == len(formats.ALL)
    assert [str(format) for format in formats.ALL] == [format.name for format in formats.ALL]


@pytest.mark.parametrize(
    ("format", "bits", "bias", "dtype"),
    [
        (FP64, 64, 1023, torch.float64),
        (FP32, 32, 127, torch.float32),
        (TF32, 19, 127, None),
        (FP16, 16, 15, torch.float16),
        (BF16, 16, 127, torch.bfloat16),
        (FP8_E4M3, 8, 7, torch.float8_e4m3fn),
        (FP8_E4M3_OCP, 8, 7, None),
        (FP8_E5M2, 8, 15, torch.float8_e5m2),
    ],
    ids=str,
)
def test_sizes(format, bits, bias, dtype):
    assert (format.bits, format.bias, format.dtype) == (bits, bias, dtype)


@pytest.mark.parametrize(
    ("format", "limits"),
    [
        (FP16, (65504.0, 2.0**-14, 2.0**-24, 2.0**-10)),
        (TF32, ((2 - 2.0**-10) * 2.0**127, 2.0**-126, 2.0**-136, 2.0**-10)),
        (BF16, ((2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7)),
        (FP8_E4M3, (448.0, 2.0**-6, 2.0**-9, 0.125)),
        (FP8_E4M3_OCP, (448.0, 2.0**-6, 2.0**-9, 0.125)),
        (FP8_E5M2, (57344.0, 2.0**-14, 2.0**-16, 0.25)),
        (Format("E4M3 as IEEE 754 would have it", 4, 3), (240.0, 2.0**-6, 2.0**-9, 0.125)),
    ],
    ids=str,
)
def test_limits(format, limits):
    assert format.limits == FormatLimits(*limits)
    assert all(type(limit) is float for limit in format.limits)


@pytest.mark.parametrize(
    ("format", "pattern", "number", "kind", "bits"),
    [
        (FP16, 0x0000, 0.0, "zero", "0 00000 0000000000"),
        (FP16, 0x8000, -0.0, "zero", "1 00000 0000000000"),
        (FP16, 0x0001, 2.0**-24, "subnormal", "0 00000 0000000001"),
        (FP16, 0x83FF, -(2.0**-14) + 2.0**-24, "subnormal", "1 00000 1111111111"),
        (FP16, 0x0400, 2.0**-14, "normal", "0 00001 0000000000"),
        (FP16, 0x3C00, 1.0, "normal", "0 01111 0000000000"),
        (FP16, 0xFBFF, -65504.0, "normal", "1 11110 1111111111"),
        (FP16, 0x7C00, math.inf, "infinity", "0 11111 0000000000"),
        (FP16, 0xFC00, -math.inf, "infinity", "1 11111 0000000000"),
        (FP16, 0x7C01, math.nan, "NaN", "0 11111 0000000001"),
        (FP16, 0xFFFF, math.nan, "NaN", "1 11111 1111111111"),
        # OFP8 1.0, the table of E4M3
        (FP8_E4M3, 0x78, 256.0, "normal", "0 1111 000"),
        (FP8_E4M3, 0x7E, 448.0, "normal", "0 1111 110"),
        (FP8_E4M3, 0x7F, math.nan, "NaN", "0 1111 111"),
        (FP8_E4M3_OCP, 0xFF, math.nan, "NaN", "1 1111 111"),
        (FP8_E4M3, 0x07, 0.875 * 2.0**-6, "subnormal", "0 0000 111"),
        # and of E5M2
        (FP8_E5M2, 0x7B, 57344.0, "normal", "0 11110 11"),
        (FP8_E5M2, 0x7C, math.inf, "infinity", "0 11111 00"),
        (FP8_E5M2, 0x7D, math.nan, "NaN", "0 11111 01"),
        (FP64, 0xBFF0_0000_0000_0000, -1.0, "normal", "1 01111111111 " + "0" * 52),
        (FP64, -1, math.nan, "NaN", "1 11111111111 " + "1" * 52),
        (TF32, 0x1FC00, 1.0, "normal", "0 01111111 0000000000"),
    ],
)
def test_patterns(format, pattern, number, kind, bits):
    assert repr(format.decode(pattern).item()) == repr(number)  # nan, and the sign of zero
    assert format.kind(pattern) == kind
    assert format.bit_string(pattern) == bits


@pytest.mark.parametrize(
    ("format", "value", "number"),
    [
        (FP16, 65519.99, 65504.0),
        (FP16, 65520.0, math.inf),
        (FP16, -65520.0, -math.inf),
        (FP16, 2.0**-25, 0.0),
        (FP16, -(2.0**-25), -0.0),
        (FP16, math.nextafter(2.0**-25, 1.0), 2.0**-24),
        (FP16, 2049.0, 2048.0),
        (FP16, 2051.0, 2052.0),
        (BF16, 257.0, 256.0),
        (FP8_E5M2, 61439.9, 57344.0),
        (FP8_E5M2, 61440.0, math.inf),
        (FP8_E4M3, 464.0, 448.0),
        (FP8_E4M3, 465.0, 448.0),
        (FP8_E4M3, 1e6, 448.0),
        (FP8_E4M3, -math.inf, -448.0),
        (FP8_E4M3_OCP, 464.0, 448.0),
        (FP8_E4M3_OCP, math.nextafter(464.0, 465.0), math.nan),
        (FP8_E4M3_OCP, -1e6, math.nan),
        (FP8_E4M3_OCP, math.inf, math.nan),
        (SATURATING, 61440.0, 57344.0),
        (SATURATING, -65536.0, -57344.0),
        (SATURATING, math.inf, 57344.0),
        (FP64, 5e-324, 5e-324),
        (FP32, 1e-46, 0.0),
        (FP32, 2.0**-149, 2.0**-149),
    ],
)
def test_rounding(format, value, number):
    assert repr(format.round(value).item()) == repr(number)


@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        (FP64, 0x7FF8_0000_0000_0000),
        (FP32, 0x7FC0_0000),
        (TF32, 0x3FE00),
        (FP16, 0x7E00),
        (BF16, 0x7FC0),
        (FP8_E4M3, 0x7F),
        (FP8_E4M3_OCP, 0x7F),
        (FP8_E5M2, 0x7E),
        (Format("one bit of fraction", 3, 1), 0xF),
    ],
    ids=str,
)
def test_every_nan_becomes_the_same_pattern(format, pattern):
    signalling = torch.tensor([0x7FF0_0000_0000_0001, -1]).view(torch.float64)
    negative = torch.tensor(-math.nan, dtype=torch.float64).copysign(torch.tensor(-1.0))
    assert torch.cat([signalling, negative[None]]).isnan().all()
    assert format.encode(signalling).tolist() == [pattern, pattern]
    assert format.encode([negative, math.nan]).tolist() == [pattern, pattern]
    assert format.kind(pattern) == "NaN"


def test_nan_from_overflow_has_no_sign_either():
    assert FP8_E4M3_OCP.encode([1e6, -1e6, -math.inf]).tolist() == [0x7F] * 3


@pytest.mark.parametrize(
    ("format", "value", "ulp", "below", "above"),
    [
        (FP16, 0.0, 2.0**-24, -(2.0**-24), 2.0**-24),
        (FP16, -0.0, 2.0**-24, -(2.0**-24), 2.0**-24),
        (FP16, 2.0**-24, 2.0**-24, 0.0, 2.0**-23),
        (FP16, -(2.0**-24), 2.0**-24, -(2.0**-23), -0.0),
        (FP16, 1e-300, 2.0**-24, 0.0, 2.0**-24),
        (FP16, 1.0, 2.0**-10, 1 - 2.0**-11, 1 + 2.0**-10),
        (FP16, -1.0, 2.0**-10, -1 - 2.0**-10, -1 + 2.0**-11),
        (FP16, 65504.0, 32.0, 65472.0, math.inf),
        (FP16, 65519.0, math.inf, 65504.0, math.inf),
        (FP16, 1e6, math.inf, 65504.0, math.inf),
        (FP16, math.inf, math.inf, 65504.0, math.nan),
        (FP16, -math.inf, math.inf, math.nan, -65504.0),
        (FP16, math.nan, math.nan, math.nan, math.nan),
        *((format, 448.0, 32.0, 416.0, math.nan) for format in E4M3S),
        *((format, 1e6, math.inf, 448.0, math.nan) for format in E4M3S),
        *((format, -math.inf, math.inf, math.nan, -448.0) for format in E4M3S),
    ],
)
def test_ulp_and_neighbours(format, value, ulp, below, above):
    assert repr(format.ulp(value).item()) == repr(ulp)
    assert [repr(got.item()) for got in format.neighbours(value)] == [repr(below), repr(above)]


def test_fields_are_named():
    fields = FP16.fields([0xC001, 0x3C00])
    assert type(fields) is Fields
    assert [field.tolist() for field in fields] == [[1, 0], [16, 15], [1, 0]]
    assert fields.fraction.dtype == fields.exponent.dtype == fields.sign.dtype == torch.int64


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 2), "exponent_bits=1.*: exponent_bits is a whole number from 2 to 11"),
        ((12, 2), "exponent_bits=12.*from 2 to 11"),
        ((-3, 2), "exponent_bits=-3"),
        ((5.0, 2), "exponent_bits=5.0"),
        ((True, 2), "exponent_bits=True"),
        (("5", 2), "exponent_bits='5'"),
        ((5, 0), "fraction_bits=0.*: fraction_bits is a whole number from 1 to 52"),
        ((5, 53), "fraction_bits=53"),
        ((11, 2, None, False), "exponent_bits=11.*from 2 to 10"),
        ((5, 10, torch.float32), "torch.float32 does not have the 16 bits of these fields"),
        ((5, 10, "half"), "dtype='half'.: it is a floating-point dtype of PyTorch, such as torch.float16"),
        ((5, 10, torch.int16), "dtype=torch.int16.: it is a floating-point dtype"),
        ((5, 2, torch.bool), "dtype=torch.bool.: it is a floating-point dtype"),
        (
            (8, 7, torch.float16),
            "largest number, smallest normal number and eps of torch.float16 are .65504.0",
        ),
        ((5, 10, torch.bfloat16), "of torch.bfloat16 are .3.38"),
        ((5, 10, torch.float16, False), "those of these fields .130944.0"),
        ((4, 3, torch.float8_e4m3fn), "of torch.float8_e4m3fn are .448.0.*those of these fields .240.0"),
        ((4, 3, torch.float8_e4m3fnuz), "of torch.float8_e4m3fnuz are .240.0, 0.0078125"),
        ((5, 2, torch.float8_e5m2fnuz), "of torch.float8_e5m2fnuz"),
        ((6, 1, torch.float8_e8m0fnu), "of torch.float8_e8m0fnu"),
        ((4, 3, torch.float4_e2m1fn_x2, False), "of torch.float4_e2m1fn_x2 are None"),
        ((5, 10, None, "no"), "has_infinity='no'.: it is True or False"),
        ((5, 10, None, 1), "has_infinity=1.: it is True or False"),
        ((5, 10, None, True, None), "saturates=None.: it is True or False"),
    ],
)
def test_what_is_no_format(sizes, message):
    with pytest.raises(ValueError, match=r"^Format\('odd'.*" + message):
        Format("odd", *sizes)


def test_a_name_is_a_text():
    with pytest.raises(ValueError, match=r"^Format\(5, name=5\): it is a text"):
        Format(5, 5, 10)


def test_the_dtypes_of_pytorch_agree_with_their_fields():
    for format in formats.ALL:
        sizes = (format.exponent_bits, format.fraction_bits)
        assert Format("again", *sizes, format.dtype, format.has_infinity).limits == format.limits


def test_the_default_device_does_not_matter_for_limits():
    with torch.device("meta"):
        assert Format("FP16 again", 5, 10, torch.float16).limits.max == 65504


def test_a_format_of_your_own():
    tiny = Format("tiny", exponent_bits=3, fraction_bits=2)
    assert tiny.limits == FormatLimits(14.0, 0.25, 0.0625, 0.25)
    assert tiny.decode(range(2**5)).tolist()[:5] == [0.0, 0.0625, 0.125, 0.1875, 0.25]
    assert tiny == Format("tiny", 3, 2)
    assert len({tiny, Format("tiny", 3, 2), Format("tiny", 3, 2, saturates=True)}) == 2
    assert repr(tiny).startswith("Format(name='tiny', exponent_bits=3, fraction_bits=2,")
