"""What the formats take for numbers and for patterns, what they leave alone, and what they say of the rest."""

import datetime
import decimal
import fractions

import numpy as np
import pytest
import torch

from amp_lab import formats
from amp_lab.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, FP64, TF32, Format
from tests.formats.alike import assert_alike

ANY = pytest.mark.parametrize("format", formats.ALL, ids=str)
TENTH = FP64.encode(0.1).item()


def methods(format):
    """Every method that takes numbers."""
    return [format.encode, format.round, format.ulp, lambda values: format.neighbours(values)[0]]


# What is taken.


@ANY
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_shapes_are_kept(format, shape):
    values = torch.rand(shape)
    for method in methods(format):
        assert method(values).shape == shape
        assert method(values.tolist()).shape == shape if 0 not in shape[:-1] else True
        assert method(values.numpy()).shape == shape
    patterns = format.encode(values)
    assert patterns.dtype == torch.int64
    assert format.decode(patterns).shape == shape
    assert {field.shape for field in format.fields(patterns)} == {shape}


def test_a_python_float_is_not_rounded_on_its_way():
    for default in (torch.float64, torch.float16):
        before = torch.get_default_dtype()
        torch.set_default_dtype(default)
        try:
            for tenth in (0.1, [[0.1]], (0.1,), np.float64(0.1), np.array(0.1), [np.float64(0.1)]):
                assert FP64.encode(tenth).flatten().tolist() == [TENTH]
            assert FP32.decode(FP32.encode(0.1)).item() == np.float32(0.1)
        finally:
            torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "ones",
    [
        1,
        1.0,
        [1, 1.0],
        range(1, 2),
        [torch.tensor(1.0), np.float32(1), 1],
        [np.array([1.0]), torch.tensor([1])],
        np.ones(3, ">f4"),
        np.ones(3, "<f2"),
        np.ones((4, 4))[::-2, ::3],
        np.broadcast_to(np.float32(1), (2, 2)),
        torch.ones(4, 4).t()[::2],
        torch.ones(()).expand(3, 2),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.complex(torch.zeros(2), -torch.ones(2)).conj().imag,
        torch.complex(torch.zeros(2).double(), -torch.ones(2).double()).conj().imag,
        *(np.ones(2, dtype) for dtype in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()),
        *(
            torch.ones(2, dtype=dtype)
            for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
        ),
        *(torch.ones(2).to(dtype) for dtype in (torch.uint16, torch.uint32, torch.uint64)),
        *(
            torch.ones(2).to(dtype)
            for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2)
        ),
        *(torch.ones(2).to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz)),
    ],
    ids=lambda ones: f"{type(ones).__name__} {getattr(ones, 'dtype', '')}",
)
def test_many_kinds_of_one(ones):
    got = FP16.encode(ones)
    assert got.unique().tolist() == [0x3C00]
    assert not FP16.round(ones).requires_grad


def test_what_is_given_stays_as_it_is():
    values, patterns = torch.tensor([0.1, -0.0, torch.nan, 1e9]).double(), torch.tensor([0x3C00, 0x7E00])
    kept = values.clone(), patterns.clone()
    for method in methods(FP16):
        method(values)
    FP16.decode(patterns)
    FP16.fields(patterns)
    assert_alike(values, kept[0])
    assert torch.equal(patterns, kept[1])
    # Nor is what comes back a view of what came in.
    FP64.round(values).fill_(7.0)
    FP64.decode(values.view(torch.int64)).fill_(7.0)
    FP64.encode(values).fill_(7)
    assert_alike(values, kept[0])


def test_inside_inference_mode_and_out():
    with torch.inference_mode():
        values = torch.tensor([0.1])
        inside = FP16.round(values)
    assert_alike(FP16.round(values).clone(), inside.clone())


@pytest.mark.parametrize("whole", [2**53, -(2**53), 2**53 - 1, 0, 3])
def test_whole_numbers_up_to_two_to_the_53(whole):
    for values in (whole, [whole], torch.tensor(whole), np.int64(whole), [np.array([whole])]):
        assert FP64.round(values).flatten().tolist() == [whole]


@pytest.mark.parametrize("whole", [2**53 + 1, -(2**53) - 1, 2**53 + 2, 2**63 - 1, -(2**63)])
def test_whole_numbers_beyond(whole):
    for values in (
        whole,
        [1.0, whole],
        torch.tensor([1, whole]),
        np.array([[1, whole]]),
        [torch.tensor(whole)],
    ):
        with pytest.raises(ValueError, match=f"^{whole} is beyond ±2\\*\\*53.*make it a float first"):
            FP64.encode(values)
    assert FP64.round(float(whole)).item() == float(whole)


@pytest.mark.parametrize("whole", [2**63, 2**64 - 1, 2**64 - 5])
def test_whole_numbers_that_only_uint64_holds(whole):
    for values in (whole, np.uint64(whole), torch.from_numpy(np.array([1, whole], dtype=np.uint64))):
        with pytest.raises(ValueError, match=f"^{whole} is beyond"):
            FP64.encode(values)


def test_whole_numbers_too_long_to_write():
    for whole in (10**400, -(10**5000)):
        words = f"^a whole number of {whole.bit_length()} bits is "
        for values in (whole, [1, whole]):
            with pytest.raises(ValueError, match=words + r"beyond ±2\*\*53"):
                FP64.encode(values)
            with pytest.raises(ValueError, match=words + "no pattern of FP16, which has 16 bits: 0 to 65535"):
                FP16.decode(values)


@pytest.mark.parametrize(
    "values",
    [
        True,
        [1.0, False],
        1j,
        "1.0",
        ["a", 1],
        None,
        [None],
        b"1",
        {1.0},
        {"x": 1.0},
        (number for number in [1.0]),
        fractions.Fraction(1, 3),
        decimal.Decimal("0.1"),
        datetime.timedelta(1),
        np.array([True]),
        np.bool_(True),
        np.array("1.0"),
        np.array([1.0, None]),
        np.array([1j]),
        np.array([1.0, 2.0], dtype=object),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.zeros(1, dtype=[("x", "f4")]),
        [np.complex64(1)],
        [fractions.Fraction(10**5000, 3)],
        [np.bool_(True)],
        torch.tensor([True]),
        torch.tensor([1j]),
        [torch.tensor(True)],
    ],
    ids=lambda values: type(values).__name__,
)
def test_what_are_no_numbers(values):
    for take in (FP16.encode, FP16.round, FP16.ulp, FP16.neighbours, FP16.decode, FP16.fields):
        with pytest.raises(
            TypeError, match=r"^(numbers are floats or ints|patterns are whole numbers); this is a"
        ):
            take(values)


def test_numpys_long_doubles():
    if np.longdouble(1).itemsize == 8:
        pytest.skip("a long double is FP64 here")
    third = np.longdouble(1) / 3  # FP64 does not hold it
    for values in (third, [third], np.array([third]), [np.array([third])], np.array([third * 1j])):
        for take in (FP16.encode, FP16.decode):
            with pytest.raises(TypeError, match=r"this is an array of (float|complex)\d+: convert it first"):
                take(values)


def test_masked_arrays():
    """What is below the mask is no number that somebody meant."""
    masked = np.ma.masked_array([1, 2], [True, False])
    for values in (masked, [masked], masked.astype(float), np.ma.masked, [np.ma.masked], [masked[0], 1.0]):
        for take in (FP16.encode, FP16.decode):
            with pytest.raises(TypeError, match=r"this is a masked array: `\.filled\(value\)` puts"):
                take(values)
    assert FP16.decode(masked.filled(0x3C00)).tolist() == [1.0, FP16.decode(2).item()]


@pytest.mark.filterwarnings("ignore")  # PyTorch: beta, or soon to go
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    ],
    ids=["COO", "CSR", "quantised", "nested", "jagged"],
)
def test_tensors_that_are_not_dense(make):
    for take in (FP16.encode, FP16.decode):
        for values in (make(), [make()]):
            with pytest.raises(TypeError, match=r"^a plain dense tensor is needed"):
                take(values)


def test_tensors_without_numbers_of_their_own():
    packed = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for values, words in (
        (torch.ones(2, device="meta"), "meta device"),
        (torch.ones(2, dtype=torch.int64, device="meta"), "meta device"),
        (packed, "this is a tensor of torch.float4_e2m1fn_x2, with two numbers in each byte"),
    ):
        for take in (FP16.encode, FP16.decode, FP16.ulp):
            for given in (values, [values]):
                with pytest.raises(TypeError, match=words):
                    take(given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (True, "numbers are floats or ints; this is a bool, True: convert it first"),
        (["a", 1], "numbers are floats or ints; this is a str, 'a'"),
        (torch.tensor([True]), "this is a tensor of torch.bool: convert it first"),
        (torch.tensor([1j]), "this is a tensor of torch.complex64"),
        (torch.eye(2).to_sparse(), r"`\.to_dense\(\)`"),
    ],
    ids=["bool", "str", "tensor of bool", "complex", "sparse"],
)
def test_the_words_for_what_are_no_numbers(values, message):
    with pytest.raises(TypeError, match=message):
        FP16.encode(values)


@pytest.mark.parametrize(
    "ragged", [[[1.0], 2.0], [1.0, [2.0]], [[1, 2], [3]], [[[1]], [2]], [torch.ones(2), [3.0]]]
)
def test_lists_that_are_no_rectangle(ragged):
    with pytest.raises(ValueError, match=r"^the lists do not make a rectangle"):
        FP16.encode(ragged)


# Patterns.


@pytest.mark.parametrize(
    "patterns",
    [
        0xC000,
        [0xC000],
        [[0xC000, 0xC000]],
        [torch.tensor(0xC000)],
        np.array([0xC000]),
        np.array([0xC000], dtype=">u2"),
        np.uint16(0xC000),
        np.int16(0xC000 - 2**16),
        np.array([0xC000 - 2**16], dtype=np.int16),
        torch.tensor([0xC000]),
        torch.tensor([0xC000], dtype=torch.uint16),
        torch.tensor([0xC000], dtype=torch.int32),
        torch.tensor([0xC000], dtype=torch.uint64),
        torch.tensor([-2.0]).half().view(torch.int16),
        [torch.tensor([-2.0]).half().view(torch.int16)],
    ],
    ids=lambda patterns: f"{type(patterns).__name__} {getattr(patterns, 'dtype', '')}",
)
def test_many_kinds_of_one_pattern(patterns):
    assert FP16.decode(patterns).unique().tolist() == [-2.0]


@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        (FP16, 65536),
        (BF16, 2**40),
        (FP8_E5M2, 256),
        (TF32, 2**19),
        (FP32, 2**32),
        (Format("wide", 10, 52), 2**63),
    ],
    ids=str,
)
def test_patterns_too_large(format, pattern):
    top = 2**format.bits - 1
    message = (
        rf"^{pattern} is no pattern of {format}, which has {format.bits} bits: 0 to {top} \(0x[1-7]?F+\)$"
    )
    for patterns in (pattern, [0, pattern], np.array([0, pattern], dtype=np.uint64), np.uint64(pattern)):
        for take in (format.decode, format.fields):
            with pytest.raises(ValueError, match=message):
                take(patterns)
    assert format.decode(top).isnan()
    assert format.decode(torch.tensor([top])).isnan()


@pytest.mark.parametrize(
    ("format", "patterns"),
    [
        (FP16, -512),
        (FP16, [1, -512]),
        (FP16, torch.tensor([1, -512])),
        (FP16, torch.tensor([1, -512], dtype=torch.int32)),
        (FP16, np.array([-512])),
        (FP32, torch.tensor([-512], dtype=torch.int16)),
        (TF32, torch.tensor([-512], dtype=torch.int32)),
    ],
)
def test_negative_patterns(format, patterns):
    mask = f"0x{2**format.bits - 1:X}"
    with pytest.raises(
        ValueError, match=rf"-512 is no pattern.*If it is a signed view of one, take `-512 & {mask}`$"
    ):
        format.decode(patterns)


def test_no_advice_for_what_cannot_be_a_view():
    with pytest.raises(ValueError, match=r"\(0xFF\)$"):
        FP8_E4M3.decode(-129)


def test_patterns_of_fp64_are_64_bits_of_either_sign():
    minus_one = 0xBFF0_0000_0000_0000
    for patterns in (
        minus_one,
        minus_one - 2**64,
        [minus_one],
        np.uint64(minus_one),
        torch.tensor(minus_one - 2**64),
    ):
        assert FP64.decode(patterns).flatten().tolist() == [-1.0]
    for beyond in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=f"^{beyond} is no pattern of FP64"):
            FP64.decode(beyond)


@pytest.mark.parametrize("patterns", [1.0, [0, 1.0], torch.tensor([1.0]), np.array([1.0]), np.float32(1)])
def test_floats_are_no_patterns(patterns):
    with pytest.raises(TypeError, match="patterns are whole numbers; this is a"):
        FP16.decode(patterns)


@pytest.mark.parametrize(
    "patterns", [[], [1, 2], torch.zeros(2, dtype=torch.int64), np.zeros((2, 1), dtype=int)]
)
def test_kind_and_bit_string_take_one(patterns):
    for take in (FP16.kind, FP16.bit_string):
        with pytest.raises(ValueError, match=r"^this takes one pattern, not [02]: call it for each"):
            take(patterns)


def test_kind_and_bit_string_take_one_in_any_wrapping():
    for pattern in (
        0x7C00,
        [0x7C00],
        torch.tensor([[0x7C00]]),
        np.uint16(0x7C00),
        np.broadcast_to(0x7C00, 1),
    ):
        assert FP16.kind(pattern) == "infinity"
        assert FP16.bit_string(pattern) == "0 11111 0000000000"
    for bad in (True, 1.0, "a", -1, 65536):
        for take in (FP16.kind, FP16.bit_string):
            with pytest.raises((TypeError, ValueError)):
                take(bad)
