"""What number formats make of a number, in words, text and HTML.

The expected words were worked out by hand or come from PyTorch's own dtypes, not from the code that is tested.
"""

import math
from fractions import Fraction
from html.parser import HTMLParser

import pytest
import torch

from amp_lab import formats
from amp_lab.view.fields import INKS, Bits
from amp_lab.view.layout import as_html, as_text
from amp_lab.view.stored import decimal, signed, store
from amp_lab.view.typed import number

FP64, FP32, FP16, BF16 = formats.FP64, formats.FP32, formats.FP16, formats.BF16
E4M3, E4M3_OCP, E5M2 = formats.FP8_E4M3, formats.FP8_E4M3_OCP, formats.FP8_E5M2


def stored(format, text):
    return store(format, number(text))


@pytest.mark.parametrize(
    ("format", "text", "bits"),
    [
        (FP16, "1", "0 01111 0000000000"),
        (FP16, "-2", "1 10000 0000000000"),
        (BF16, "1.5", "0 01111111 1000000"),
        (E4M3, "448", "0 1111 110"),
        (FP64, "-inf", "1 11111111111 " + "0" * 52),
        (FP64, "-0.0", "1 " + "0" * 11 + " " + "0" * 52),
    ],
)
def test_bits_are_cut_into_their_fields(format, text, bits):
    assert stored(format, text).bits == Bits(*bits.split())


@pytest.mark.parametrize("format", [each for each in formats.ALL if each.dtype], ids=str)
@pytest.mark.parametrize("value", [0.1, -3.14159, 1e-5, 300.0, 0.0])
def test_value_and_neighbours_are_pytorchs(format, value):
    found = stored(format, value)
    there = torch.tensor(value).to(format.dtype).double().item()
    if format is FP64:
        there = value
    assert found.value == there
    for side in (found.below, found.above):
        assert torch.tensor(side, dtype=torch.float64).to(format.dtype).double().item() == side
    assert found.below < found.value < found.above
    between = torch.linspace(found.below, found.above, 21, dtype=torch.float64)[1:-1]
    known = {found.below, found.value, found.above}
    assert {each.to(format.dtype).double().item() for each in between} <= known, (
        "a nearer one was passed over"
    )


@pytest.mark.parametrize(
    ("format", "text", "error", "share", "fate"),
    [
        (FP16, "0.1", "−2.441e−5 (−0.4 ulp)", "−0.0244 %", "normal"),
        (FP64, "0.1", "+5.551e−18 (+0.4 ulp)", "+5.55e−15 %", "normal"),
        (FP16, "1/3", "−8.138e−5 (−0.333 ulp)", "−0.0244 %", "normal"),
        (FP16, "0.5", "none", "", "normal"),
        (FP16, "2049", "−1 (−0.5 ulp)", "−0.0488 %", "normal"),
        (FP16, "2**-24", "none", "", "subnormal"),
        (FP16, "2**-25", "−2.98e−8 (−0.5 ulp)", "−100 %", "underflow: zero"),
        (FP16, "1e-400", "−1e−400 (−1.68e−393 ulp)", "−100 %", "underflow: zero"),
        (FP16, "65519.99", "−15.99 (−0.499688 ulp)", "−0.0244 %", "normal"),
        (FP16, "65520", "infinite", "", "overflow: infinity"),
        (FP16, "-65520", "infinite", "", "overflow: infinity"),
        (FP16, "inf", "none", "", "infinity"),
        (FP16, "nan", "NaN", "", "NaN"),
        (FP16, "0", "none", "", "zero"),
        (FP16, "-0.0", "none", "", "zero"),
        (E4M3, "464", "−16 (−0.5 ulp)", "−3.45 %", "normal"),
        (E4M3, "465", "−17 (−0.531 ulp)", "−3.66 %", "overflow: the largest number"),
        (E4M3, "-inf", "infinite", "", "overflow: the largest number"),
        (E4M3_OCP, "465", "NaN", "", "overflow: NaN"),
        (E5M2, "1e6", "infinite", "", "overflow: infinity"),
        (BF16, "1 + 2**-8 + 1e-30", "−0.003906 (nearly −0.5 ulp)", "−0.389 %", "normal"),
        (FP64, "2e308", "infinite", "", "overflow: infinity"),
    ],
)
def test_error_and_fate(format, text, error, share, fate):
    found = stored(format, text)
    assert (found.error_in_words, found.share_in_words, found.fate) == (error, share, fate)


def test_the_error_is_against_what_was_typed():
    assert stored(FP64, "0.1").error == Fraction(0.1) - Fraction(1, 10) != 0
    assert stored(FP16, "0.1").error == Fraction("0.0999755859375") - Fraction(1, 10)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "−0"),
        (0.0999755859375, "0.0999755859375"),
        (0.1, "0.100000000000000005…"),
        (-1.0, "−1"),
        (65504.0, "65504"),
        (2.0**-24, "5.9604644775390625e−8"),
        (1e-8, "1.00000000000000002…e−8"),
        (1 - 2.0**-53, "0.999999999999999888…"),
        (1e16, "1e16"),
        (2.0**-14, "0.00006103515625"),
        (math.inf, "inf"),
        (-math.inf, "−inf"),
        (math.nan, "NaN"),
    ],
)
def test_decimals_are_exact_or_end_in_an_ellipsis(value, text):
    assert decimal(value) == text


def test_a_cut_decimal_is_never_rounded_up():
    """0.99999…, rounded to 18 digits, would read as 1, which is another number."""
    shown = decimal(math.nextafter(2.0**60, 0))
    assert shown == "1.15292150460684684…e18"
    assert Fraction(shown.replace("…", "")) < Fraction(math.nextafter(2.0**60, 0))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 3), "+0.3333"),
        (Fraction(-1, 3000), "−3.333e−4"),
        (Fraction(-(10**350)), "−1e350"),
        (Fraction(999999), "+1e6"),
        (Fraction(-16), "−16"),
    ],
)
def test_signed(value, text):
    assert signed(value) == text


class Reading(HTMLParser):
    """Keeps what a page says and which tags are open; fails on tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.open, self.words, self.rows = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
            if self.rows:
                self.rows[-1].append(data)


def test_html_has_formats_in_order_and_everything_about_them():
    page = as_html([stored(each, "0.1") for each in (FP16, E4M3_OCP, FP64)])
    reading = Reading(page)
    assert reading.rows[0] == ["format", "stored", "error", "neighbours"]
    assert reading.rows[1] == ["FP16", "16 bits", "0", "01011", "1001100110"]
    assert reading.rows[2] == [
        *("0.0999755859375", "normal", "−2.441e−5 (−0.4 ulp)", "−0.0244 %"),
        *("↑ 0.10003662109375", "↓ 0.09991455078125"),
    ]
    assert reading.rows[3][:3] == ["FP8 E4M3", "8 bits", "OCP, not saturating"]
    assert reading.rows[5][0] == "FP64"
    assert reading.words[:5:2] == ["sign", "exponent", "fraction"], "the colours are named"


def test_html_aligns_where_exponent_and_fraction_meet():
    page = as_html([stored(each, 1.0) for each in (FP64, BF16, FP16)])
    assert [f"padding-left: {indent}ch" in page for indent in (0, 3, 6, 1)] == [True, True, True, False]


def test_html_escapes_names():
    page = as_html([store(formats.Format("<b>&", 5, 10), number(1.0))])
    assert "&lt;b&gt;&amp;" in page
    Reading(page)


def luminance(colour):
    """WCAG 2.2's relative luminance of "#rrggbb"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ink", INKS)
def test_digits_can_be_read_on_their_colour(ink):
    one, other = sorted([luminance(ink.cell), luminance(ink.digit)])
    assert (other + 0.05) / (one + 0.05) > 5


def test_text():
    assert as_text([stored(FP16, "0.1"), stored(E4M3_OCP, "465")]) == (
        "FP16      0 01011 1001100110\n"
        "          0.0999755859375, error −2.441e−5 (−0.4 ulp), −0.0244 %; normal\n"
        "          between 0.09991455078125 and 0.10003662109375\n"
        "FP8 E4M3  0 1111 111  (OCP, not saturating)\n"
        "          NaN, error NaN; overflow: NaN\n"
        "          between none and none"
    )
