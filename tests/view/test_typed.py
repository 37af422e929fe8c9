"""Numbers as people type them: what is read, what is refused, and that no text does any harm."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_lab.view.typed import NotANumber, exactly, number, read


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("0.1", Fraction(1, 10)),
        (" 1e-8 ", Fraction(1, 10**8)),
        ("65519.99", Fraction(6551999, 100)),
        ("1_000", 1000),
        ("0x1.8p3", 12),
        ("-0X1P-24", Fraction(-1, 2**24)),
        ("0x10", 16),
        ("2**-24", Fraction(1, 2**24)),
        ("2^-24", Fraction(1, 2**24)),
        ("-2**2", -4),
        ("(-2)**2", 4),
        ("1/3", Fraction(1, 3)),
        ("2048 + 1", 2049),
        ("2**-11 + 2**-21", Fraction(1025, 2**21)),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("3 × 10^−8", Fraction(3, 10**8)),
        ("7 * (1 - 0.5)", Fraction(7, 2)),
        ("1e400", 10**400),
        ("-1e-400", Fraction(-1, 10**400)),
        ("0e999999999", 0),
        ("0e9999999999999999999", 0),
        ("1e" + "0" * 40 + "2", 100),
        ("0x20000000000001", 2**53 + 1),
        ("-0x1.fffffffffffff8p0", Fraction(1, 2**53) - 2),
        ("0x.8", Fraction(1, 2)),
        ("0x1p-1100", Fraction(1, 2**1100)),
        ("0x0p99999999999", 0),
        ("1**1e9", 1),
    ],
)
def test_what_is_read(text, exact):
    assert read(text).exact == exact


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("1/3", 1 / 3),
        ("0.1 + 0.2", 0.3),
        ("1.7976931348623158e308", 1.7976931348623157e308),
        ("2e308", math.inf),
        ("-2e308", -math.inf),
        ("1e-400", 0.0),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("∞", math.inf),
    ],
)
def test_the_value_is_the_nearest_in_fp64(text, value):
    assert read(text).value == value


@pytest.mark.parametrize(
    ("text", "sign"),
    [("0", 1), ("-0", -1), ("-0.0", -1), ("-.0e5", -1), ("-0x0p0", -1), ("-1 + 1", 1), ("-1e-400", -1)],
)
def test_zeros_keep_their_sign(text, sign):
    value = read(text).value
    assert value == 0
    assert math.copysign(1, value) == sign


def test_a_sum_is_rounded_once_where_python_rounds_every_step():
    assert read("0.1 + 0.2").value == 0.3 != 0.1 + 0.2
    assert read("0.1 + 0.2").exact == Fraction(3, 10)


def test_ints_are_taken_digit_for_digit():
    assert number(2**53 + 1).exact == 2**53 + 1
    assert number(2**53 + 1).text == "9007199254740993"
    assert number(10**300).value == 1e300


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), 10**5000, Fraction(10**400)], ids=["", "-", "long", "/"]
)
def test_numbers_beyond_fp64(value):
    with pytest.raises(ValueError, match=r"^That is beyond FP64, whose largest number is about 1\.8e308"):
        number(value)


@pytest.mark.parametrize("value", [None, [0.1], 1j, b"1", object()], ids=lambda value: type(value).__name__)
def test_what_is_neither_text_nor_number(value):
    with pytest.raises(TypeError, match=r"^a number such as 0\.1 is needed; this is a "):
        number(value)


def test_nan():
    assert math.isnan(read("NaN").value)
    assert read("nan").exact is None


@given(st.floats(allow_nan=False))
def test_every_float_is_read_as_python_reads_it(value):
    for text in (repr(value), value.hex(), f"{value:.25e}"):
        found = read(text).value
        assert found == value
        assert math.copysign(1, found) == math.copysign(1, value)


def test_a_float_stands_for_its_shortest_spelling_or_exactly_for_itself():
    assert number(0.1).exact == Fraction(1, 10)
    assert number("1/3").exact == Fraction(1, 3)
    assert exactly(0.1).exact == Fraction(0.1) != Fraction(1, 10)
    assert exactly(math.inf).exact is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Type a number"),
        (" \t", "Type a number"),
        ("abc", "“abc” is not a number that can be read here. Examples: 0.1"),
        ("1e", "not a number"),
        ("1,5", "Examples: 0.1"),
        ("65,504", "Type 65504."),
        ("--inf", "For infinity, type inf"),
        ("1/0", "divides by zero"),
        ("0**-1", "divides by zero"),
        ("1e401", "stay between 1e-400 and 1e400"),
        ("1e-401", "stay between"),
        ("0x1p99999", "stay between"),
        ("10**401", "stay between"),
        ("1e300 * 1e300", "stay between"),
        ("2**0.5", "The exponent of a power must be a whole number here: roots are not worked out."),
        ("(-8)**(1/3)", "The exponent of a power must be a whole number"),
        ("0x1p-2000", "stay between"),
        ("0x1p999999999999", "stay between"),
        ("1e9999999999999999999", "stay between 1e-400 and 1e400"),
        ("-1e-9999999999999999999", "stay between"),
        ("1 + 1e" + "0" * 40 + "9" * 30, "stay between"),
        ("1e9999999999999999999x", "not a number"),
        ("0" * 81, "Up to 80 characters"),
    ],
)
def test_what_is_refused_with_a_sentence(text, words):
    with pytest.raises(NotANumber) as refused:
        read(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "2**1e9",
        "1e999999999",
        "1e99999999999999999999",
        "0x1p" + "0" * 40 + "9" * 30,
        "(" * 40 + "1" + ")" * 39,
        "-" * 79 + "x",
        "__import__('os').abort()",
        "print(1)",
        "1 if 1 else 2",
        "[1]",
        "'1'",
        "True",
        "1j",
        "1//2",
        "1 # one",
        "1\n2",
        "\0",
        "1(2)",
        "(yield)",
        "0777 + x",
        "snan",
        "0x",
        "0xp3",
    ],
)
def test_nothing_is_run_and_nothing_takes_long(text):
    with pytest.raises(NotANumber):
        read(text)


@given(st.text(max_size=90) | st.text("0123456789.e+-*/()x p_^infa", max_size=90))
def test_any_text_gives_a_number_or_a_sentence(text):
    sentence = ""
    try:
        value = read(text).value
    except NotANumber as refused:
        sentence = str(refused)
    assert sentence.endswith(".") or isinstance(value, float)
