"""The picture of number formats: that every bit is drawn, where it belongs, and can be read."""

import math
import re
from itertools import pairwise

import matplotlib

matplotlib.use("agg")

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from amp_lab import formats
from amp_lab.view.bits import bit_layout
from amp_lab.view.fields import INKS

FP64, FP32, FP16, BF16, E5M2 = formats.FP64, formats.FP32, formats.FP16, formats.BF16, formats.FP8_E5M2


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


def draw(*rows):
    figure = bit_layout(rows, "a title")
    figure.canvas.draw()
    return figure.axes[0]


def cells(axes):
    """Return each row's cells from left to right, as (field, left edge, right edge), rows from the top."""
    inks = [ink.cell.lower() for ink in INKS]
    rows = {}
    for patch in axes.patches:
        cell = (inks.index(to_hex(patch.get_facecolor())), patch.get_x(), patch.get_x() + patch.get_width())
        rows.setdefault(round(patch.get_y(), 6), []).append(cell)
    return [sorted(rows[y], key=lambda cell: cell[1]) for y in sorted(rows, reverse=True)]


def words(axes):
    return [text.get_text() for text in axes.texts]


def boxes(axes):
    renderer = axes.figure.canvas.get_renderer()
    return [(text.get_text(), text.get_window_extent(renderer)) for text in axes.texts if text.get_text()]


@pytest.mark.parametrize("value", [None, 0.1])
@pytest.mark.parametrize(
    "chosen",
    [formats.ALL, (FP32, FP16, BF16, E5M2), (FP16,), formats.ALL[5:], (E5M2, FP64)],
    ids="all four one fp8 mixed".split(),
)
def test_every_bit_has_a_cell_and_fields_meet_at_one_boundary(chosen, value):
    axes = draw(*((each, value) for each in chosen))
    rows = cells(axes)
    assert len(rows) == len(chosen)
    ends, starts, widths = set(), set(), set()
    for each, row in zip(chosen, rows, strict=True):
        fields = [field for field, _, _ in row]
        assert fields == [0] + [1] * each.exponent_bits + [2] * each.fraction_bits
        ends.add(round(max(right for field, _, right in row if field == 1), 4))
        starts.add(round(min(left for field, left, _ in row if field == 2), 4))
        widths |= {round(right - left, 4) for _, left, right in row}
        assert all(one[2] <= other[1] + 1e-9 for one, other in pairwise(row)), "cells overlap"
    assert len(ends) == len(starts) == len(widths) == 1
    assert max(ends) < min(starts)


@pytest.mark.parametrize("value", [None, 0.1, -1e-300, "65519.99"])
@pytest.mark.parametrize(
    "chosen", [formats.ALL, (FP16, BF16), formats.ALL[5:], (E5M2, FP64)], ids="all two fp8 mixed".split()
)
def test_nothing_is_cut_off_and_no_words_overlap(chosen, value):
    axes = draw(*((each, value) for each in chosen))
    page = axes.figure.bbox
    found = boxes(axes)
    for text, box in found:
        assert page.x0 <= box.x0, text
        assert box.x1 <= page.x1, text
        assert page.y0 <= box.y0, text
        assert box.y1 <= page.y1, text
    # Digits stand in cells of their own; a pixel is forgiven, as boxes have room for accents.
    for number, (text, box) in enumerate(found):
        for other, other_box in found[number + 1 :]:
            apart = (
                box.x1 <= other_box.x0 + 1
                or other_box.x1 <= box.x0 + 1
                or box.y1 <= other_box.y0 + 3
                or other_box.y1 <= box.y0 + 3
            )
            assert apart, (text, other)


def test_with_a_value_every_cell_shows_its_bit():
    axes = draw((FP16, 0.1), (BF16, -2.0))
    digits = [text for text in words(axes) if text in ("0", "1")]
    assert "".join(digits) == "0010111001100110" + "1100000000000000"
    assert "0.0999755859375 · error −2.441e−5 (−0.4 ulp)" in words(axes)
    assert "−2 · error none" in words(axes)


def test_without_a_value_fields_show_their_sizes():
    assert words(draw((FP16, None)))[-5:] == ["", "1", "5", "10", "16 bits"]


def test_a_fate_that_is_not_normal_is_named():
    assert "inf · error infinite · overflow: infinity" in words(draw((FP16, 65520.0)))
    assert "5.9604644775390625e−8 · error none · subnormal" in words(draw((FP16, "2**-24")))


def test_names_and_title():
    axes = draw((formats.FP8_E4M3_OCP, math.nan))
    assert words(axes)[:4] == ["a title", "sign", "exponent", "fraction"]
    assert words(axes)[4:6] == ["FP8 E4M3", "OCP, not saturating"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one format"),
        ([(FP16, "two")], "“two” is not a number"),
        ([(FP16, 10**400)], "That is beyond FP64"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_figure(rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        bit_layout(rows, "a title")
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "rows",
    [
        FP16,
        [FP16],
        (FP16, 0.1),
        "FP16",
        ["ab"],
        [("FP16", 1)],
        [(torch.float16, 1)],
        [(FP16,)],
        None,
        torch.float16,
    ],
    ids=str,
)
def test_what_are_no_rows(rows):
    with pytest.raises(
        TypeError, match=r"^bit_layout needs a list of \(format, value or None\), as in \[\(formats"
    ):
        bit_layout(rows, "a title")
    assert plt.get_fignums() == []
