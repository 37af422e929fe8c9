"""The figures of lesson 01: that they show PyTorch's own numbers, and that no error leaves a figure."""

import math
import re
import sys

import matplotlib

matplotlib.use("agg")

import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab import formats
from amp_lab.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, FP64, TF32
from amp_lab.view.number_line import number_line, range_and_precision, spacing
from amp_lab.view.widgets import float_explorer

SIX = [FP32, TF32, BF16, FP16, FP8_E5M2, FP8_E4M3]
MOST = sys.float_info.max
INTEGERS = {1: torch.uint8, 2: torch.int16}


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


def panels(figure):
    figure.canvas.draw()
    return figure.axes


def texts(axes):
    return [text.get_text() for text in axes.texts]


def positive_numbers(dtype):
    """All positive finite numbers that PyTorch has in a dtype of one or two bytes, in order."""
    patterns = torch.arange(2 ** (8 * dtype.itemsize)).to(INTEGERS[dtype.itemsize])
    numbers = patterns.view(dtype).double()
    return numbers[numbers.isfinite() & (numbers > 0)].sort().values


def marks(axes):
    """The marks of each row, from top to bottom."""
    rows = axes.collections[1::2]
    return [[segment[0, 0] for segment in row.get_segments()] for row in rows]


def test_a_line_shows_every_number_once():
    (axes,) = panels(number_line([FP8_E5M2, FP8_E4M3], -1, 8, "a title"))
    for row, dtype in zip(marks(axes), (torch.float8_e5m2, torch.float8_e4m3fn), strict=True):
        positive = positive_numbers(dtype).tolist()
        wanted = [-x for x in positive[::-1] if x <= 1] + [0.0] + [x for x in positive if x <= 8]
        assert row == wanted
    assert axes.get_title() == "a title"
    assert axes.get_xlabel() == "value"
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [
        f"{each}\n{len(row)} numbers" for each, row in zip(("FP8 E5M2", "FP8 E4M3"), marks(axes), strict=True)
    ]


def test_both_ends_of_a_line_belong_to_it_and_infinity_is_no_number():
    (axes,) = panels(number_line([FP16], 65440, 1e9, "a title"))
    assert marks(axes) == [[65440.0, 65472.0, 65504.0]]


def bars(axes):
    return [
        (bar.get_x(), bar.get_x() + bar.get_width(), -bar.get_y() - bar.get_height() / 2)
        for bar in axes.patches
    ]


def test_bars_reach_from_the_smallest_to_the_largest_number():
    reach, _ = panels(range_and_precision(SIX, "a title"))
    assert [label.get_text() for label in reach.get_yticklabels()] == [each.name for each in SIX]
    for row, dtype in {0: torch.float32, 2: torch.bfloat16, 3: torch.float16, 4: torch.float8_e5m2}.items():
        info = torch.finfo(dtype)
        first, middle, last = map(
            math.log10, (info.smallest_normal * info.eps, info.smallest_normal, info.max)
        )
        subnormal, normal = bars(reach)[2 * row : 2 * row + 2]
        assert subnormal == pytest.approx((first, middle, row))
        assert normal == pytest.approx((middle, last, row))
    assert texts(reach)[:2] == ["1.4e-45", "3.4e+38"]
    assert texts(reach)[6:] == ["6e-08", "65,504", "1.5e-05", "57,344", "0.002", "448"]
    ticks = dict(zip(reach.get_xticks(), [each.get_text() for each in reach.get_xticklabels()], strict=True))
    assert ticks == {power: f"$10^{{{power}}}$" for power in (-40, -20, 0, 20)}


def test_precision_counts_the_bit_that_is_not_stored():
    _, fineness = panels(range_and_precision(SIX, "a title"))
    lengths = [end for _, end, _ in bars(fineness)]
    assert lengths == pytest.approx([bits * math.log10(2) for bits in (24, 11, 8, 11, 3, 4)])
    assert texts(fineness)[:4] == ["7.2 (24)", "3.3 (11)", "2.4 (8)", "3.3 (11)"]


@pytest.mark.parametrize("chosen", [[FP64], [FP32], [FP8_E4M3], [FP64, FP8_E4M3]], ids=str)
def test_there_is_room_for_every_text_beside_a_bar(chosen):
    figure = range_and_precision(chosen, "a title")
    for axes in panels(figure):
        for text in axes.texts:
            box = text.get_window_extent()
            assert axes.bbox.x0 <= box.x0, text
            assert box.x1 <= axes.bbox.x1, text
        assert len(axes.get_xticks()) >= 2


def lines(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 1]


def crosses(axes):
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "X"]


@pytest.mark.parametrize(
    ("chosen", "dtype"), [(FP16, torch.float16), (BF16, torch.bfloat16), (FP8_E4M3, torch.float8_e4m3fn)]
)
def test_a_staircase_is_as_high_as_the_next_number_is_away(chosen, dtype):
    absolute, _ = panels(spacing([chosen], "a title", 1e-9, 1e9))
    (line,) = lines(absolute)
    xs, ys = (torch.as_tensor(each) for each in (line.get_xdata(), line.get_ydata()))
    numbers = positive_numbers(dtype)
    numbers = numbers[(numbers >= 1e-9) & (numbers <= 1e9)]
    gaps = numbers.diff()
    middles = (numbers[:-1] + numbers[1:]) / 2
    stretch = torch.searchsorted(xs.contiguous(), middles)  # the upright parts lie between two middles
    assert torch.equal(ys[stretch], gaps)
    assert torch.equal(ys[stretch - 1], gaps), "the line slopes"
    # The last gap below infinity is taken for the largest number, too.
    assert xs[-1] == numbers[-1] or chosen is BF16


def test_relative_gaps_are_the_gaps_divided():
    absolute, relative = panels(spacing([FP32, FP16], "a title"))
    for above, beside in zip(lines(absolute), lines(relative), strict=True):
        assert list(above.get_xdata()) == list(beside.get_xdata())
        assert list(beside.get_ydata()) == pytest.approx(list(above.get_ydata() / above.get_xdata()))
    assert max(lines(relative)[1].get_ydata()) == 1.0, "the smallest FP16 number is one gap from zero"
    assert [axes.get_xscale() + axes.get_yscale() for axes in (absolute, relative)] == ["loglog"] * 2


def test_a_cross_marks_the_end_of_a_format_in_sight():
    for axes in panels(spacing([FP32, FP16, BF16], "a title")):
        assert texts(axes) == ["FP32", "FP16", "BF16"]
        assert [x for x, _ in crosses(axes)] == [65504]
        assert len({line.get_color() for line in lines(axes)}) == 3
        assert [text.get_color() for text in axes.texts] == [line.get_color() for line in lines(axes)]


def test_magnitudes_between_two_powers_of_two():
    absolute, _ = panels(spacing([FP16], "a title", 3, 5))
    (line,) = lines(absolute)
    assert list(line.get_xdata()) == [3, 4, 4, 5]
    assert list(line.get_ydata()) == [2**-9, 2**-9, 2**-8, 2**-8]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: number_line([], 0, 1, ""), "number_line was given no format to draw, for instance"),
        (lambda: number_line([FP16], 1, 1, ""), "a line from 1 to 1 has no length"),
        (lambda: number_line([FP16], 2, 1, ""), "a line from 2 to 1 has no length"),
        (lambda: number_line([FP16], 0, math.inf, ""), "choose finite ends"),
        (lambda: number_line([FP16], math.nan, 1, ""), "choose finite ends"),
        (lambda: number_line([FP8_E4M3], -1.7e308, 1.7e308, ""), "choose ends within ±1e+300"),
        (lambda: number_line([FP8_E4M3], 1e302, 1e308, ""), "choose ends within ±1e+300"),
        (lambda: number_line([FP8_E4M3], 0, 1e-300, ""), "further apart than 1e-280"),
        (
            lambda: number_line([FP8_E4M3], 1, math.nextafter(1, 2), ""),
            "further apart than 1e-280 and than 1e-12",
        ),
        (lambda: number_line([FP16], 0, 10**400, ""), "That is beyond FP64"),
        (lambda: spacing([FP16], "", 1, 10**400), "That is beyond FP64"),
        (lambda: number_line([FP32], 0, 1, ""), "FP32 has 32 bits, too many numbers"),
        (lambda: number_line([FP16], 0, 1, ""), "FP16 has 15,361 numbers from 0 to 1"),
        (lambda: number_line([FP8_E4M3] * 6, 0, 1, ""), "at most 5 formats can be told apart"),
        (lambda: range_and_precision([], ""), "range_and_precision was given no format"),
        (lambda: spacing([], ""), "spacing was given no format"),
        (lambda: spacing(SIX, ""), "at most 5 formats can be told apart in one picture; 6 were given"),
        (lambda: spacing([FP16], "", 0.0), "cannot go from 0 to 1e+06"),
        (lambda: spacing([FP16], "", 1, 1), "cannot go from 1 to 1"),
        (lambda: spacing([FP16], "", 1, math.inf), "cannot go from 1 to inf"),
        (lambda: spacing([FP32, FP16], "", 1e5), "FP16 has no numbers from 100000 to 1e+06"),
        (lambda: spacing([FP16], "", 1e-9, 1e-8), "FP16 has no numbers from 1e-09 to 1e-08"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_figure(draw, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draw()
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda given: number_line(given, 0, 1, ""),
        lambda given: range_and_precision(given, ""),
        lambda given: spacing(given, ""),
        float_explorer,
    ],
    ids="number_line range_and_precision spacing float_explorer".split(),
)
@pytest.mark.parametrize(
    "given", [FP16, "FP16", ["FP16"], torch.float16, [torch.float16], [FP16, None], None, 16], ids=str
)
def test_what_is_no_list_of_formats(draw, given):
    with pytest.raises(TypeError, match=r"^\w+ needs a list of formats, as in \[formats\.FP16\]"):
        draw(given)
    assert plt.get_fignums() == []


def test_one_format_is_told_from_what_is_none():
    with pytest.raises(TypeError, match=r"; FP16 alone is none$"):
        spacing(FP16, "a title")
    with pytest.raises(TypeError, match=r"; torch\.float16 is no format$"):
        spacing([torch.float16], "a title")


def test_formats_may_come_from_any_iterable():
    spacing((each for each in (FP16, BF16)), "a title")
    number_line((FP8_E4M3,), 0, 8, "a title")


@pytest.mark.parametrize("ends", [("0", "1"), (None, 1), (0, 1j), ([0], 1)], ids=str)
def test_ends_that_are_no_numbers(ends):
    for draw in (lambda: number_line([FP16], *ends, ""), lambda: spacing([FP16], "", *ends)):
        with pytest.raises(TypeError, match=r"^(low|high): a number such as 0\.1 is needed; this is a"):
            draw()
    assert plt.get_fignums() == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (1e-300, 1e300),
        (1e305, 1e308),
        (1e-9, 1e270),
        (5e-324, MOST),
        (1e308, MOST),
        (1e-320, 1e-300),
        (1e-323, 1e-322),
    ],
)
def test_all_of_fp64_can_be_drawn(low, high):
    figure = spacing([FP64], "a title", low, high)
    for axes in panels(figure):
        left, right = axes.get_xlim()
        assert left == low
        assert high <= right <= MOST
        bottom, top = axes.get_ylim()
        (line,) = lines(axes)
        assert bottom <= min(line.get_ydata())
        assert max(line.get_ydata()) <= top
        (name,) = axes.texts
        assert name.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("low", "high"), [(1e-280, 3e-280), (-1e300, 1e300), (1, 1 + 2e-12), (-3e-280, 0)])
def test_a_line_ends_where_it_was_asked_to(low, high):
    (axes,) = panels(number_line([FP8_E4M3], low, high, "a title"))
    assert axes.get_xlim() == pytest.approx(
        (low - 0.01 * (high - low), high + 0.01 * (high - low)), rel=1e-9, abs=0
    )


def test_all_formats_have_what_the_figures_ask_for():
    for each in formats.ALL:
        range_and_precision([each], each.name)
        spacing([each], each.name)
