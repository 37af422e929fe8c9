"""The figure of a network against a range: that hills, colours and shares are those of the numbers."""

import itertools
import math
import re

import matplotlib

matplotlib.use("agg")

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import Polygon, Rectangle, StepPatch

from amp_lab.formats import BF16, FP8_E4M3, FP8_E4M3_OCP, FP8_E5M2, FP16, FP64
from amp_lab.view.activations import against_range


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


def draw(number_format=FP16, **rows):
    figure = against_range(rows, number_format, "a title")
    figure.canvas.draw()
    return figure.axes[0]


def words(axes):
    return [text.get_text() for text in axes.texts]


def hills(axes):
    return [patch for patch in axes.patches if isinstance(patch, StepPatch)]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1.0, -2.0], "all kept"),
        ([0.0, 1.0], "all kept"),
        ([65519.0, 2**-24], "all kept"),
        ([65520.0, -1e9, 1.0, 2.0], "50% inf"),
        ([2**-25, 1.0, 0.0, 0.0], "50% zero"),
        ([1e6, 1e-9, 1.0, 1.0], "25% inf, 25% zero"),
        ([1e6] + [1.0] * 999, "under 1% inf"),
        ([1e6] * 999 + [1.0], "over 99% inf"),
        ([1e6], "100% inf"),
    ],
)
def test_what_is_lost_is_written_beside_the_row(numbers, said):
    assert words(draw(row=torch.tensor(numbers)))[4] == said


def test_rows_are_named_from_top_to_bottom():
    axes = draw(first=torch.ones(3), second=torch.ones(2, 2).bfloat16())
    names = {label.get_text(): label.get_position()[1] for label in axes.get_yticklabels()}
    assert list(names) == ["first", "second"]
    assert names["first"] > names["second"]
    assert axes.get_title() == "a title"
    assert "powers of ten" in axes.get_xlabel()
    assert words(axes)[-1] == "in FP16"


def test_a_hill_stands_where_the_numbers_are():
    numbers = torch.tensor([-1.5, 1.5, 1.5, 0.0, 1500.0])
    (hill,) = hills(draw(row=numbers))
    heights, edges, baseline = hill.get_data()
    inside = [
        (low, high, height - baseline)
        for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True)
        if height > baseline
    ]
    (low, high, many), (low_of_one, high_of_one, one) = inside
    assert low <= math.log10(1.5) < high
    assert low_of_one <= math.log10(1500) < high_of_one
    assert many == pytest.approx(3 * one)


def test_all_hills_are_equally_high_and_do_not_meet():
    axes = draw(few=torch.ones(1), many=torch.logspace(-3, 3, 1000))
    tops = []
    for hill in hills(axes):
        heights, _, baseline = hill.get_data()
        tops.append((baseline, max(heights)))
    (upper_base, upper_top), (lower_base, lower_top) = tops
    assert upper_top - upper_base == pytest.approx(lower_top - lower_base)
    assert lower_top < upper_base


def stretches(axes):
    """The coloured parts of the background, from left to right."""
    found = [each for each in axes.patches if isinstance(each, Rectangle | Polygon)]
    return sorted((each.get_extents().x0, each.get_extents().x1) for each in found)


@pytest.mark.parametrize("number_format", [FP16, BF16], ids=str)
def test_colours_end_where_the_range_ends(number_format):
    axes = draw(number_format, row=torch.ones(3))
    limits = number_format.limits
    ends = [math.log10(each) for each in (limits.smallest_subnormal / 2, limits.smallest_normal, limits.max)]
    pixels = [axes.transData.transform((end, 0))[0] for end in ends]
    parts = stretches(axes)
    assert [first for first, _ in parts[1:]] == pytest.approx(pixels)
    assert [last for _, last in parts[:-1]] == pytest.approx(pixels)
    assert words(axes)[:4] == ["zero", "sub-\nnormal", "normal", "inf"]


def test_a_few_numbers_far_out_do_not_stretch_the_picture():
    numbers = torch.ones(2000)
    numbers[0] = 1e-30
    assert draw(row=numbers).get_xlim()[0] > -10
    numbers[:100] = 1e-30
    assert draw(row=numbers).get_xlim()[0] < -30


def test_tensors_with_a_gradient_may_be_drawn():
    draw(row=torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "against_range was given no row to draw"),
        ({"logits": torch.tensor([1.0, math.inf])}, "'logits' holds inf or NaN"),
        ({"logits": torch.tensor([math.nan])}, "'logits' holds inf or NaN"),
        ({"logits": torch.zeros(3)}, "'logits' has no number but zero"),
        ({"logits": torch.zeros(0)}, "'logits' has no number but zero"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_figure(rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        against_range(rows, FP16, "a title")
    assert plt.get_fignums() == []


@pytest.mark.parametrize("number_format", [FP16, BF16], ids=str)
def test_headings_stand_in_one_line_and_beside_each_other(number_format):
    axes = draw(number_format, row=torch.tensor([1e-20, 1e15]))
    headings = [*axes.texts[:4], axes.texts[-1]]
    assert len({heading.get_position()[1] for heading in headings}) == 1
    boxes = [heading.get_window_extent() for heading in headings if heading.get_visible()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize("number_format", [FP8_E4M3, FP8_E4M3_OCP], ids=str)
def test_without_infinity_numbers_are_too_large(number_format):
    axes = draw(number_format, row=torch.tensor([448.0, 464.0, 465.0, 1e6]))
    assert words(axes)[3:5] == ["too\nlarge", "50% too large"]


def test_infinity_of_a_small_format():
    assert words(draw(FP8_E5M2, row=torch.tensor([57344.0, 61439.0, 61440.0, 1e6])))[4] == "50% inf"


def test_fp64_has_ends_too():
    assert words(draw(FP64, row=torch.tensor([1.0, 5e-324], dtype=torch.float64)))[4] == "all kept"


def test_long_names_and_dollars_leave_room_for_the_hills():
    name = "a row with $x$ and a very long name that goes on and on and on until it is eighty characters"
    figure = against_range({name: torch.ones(3), r"$\foo$": torch.ones(3)}, BF16, name * 2)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_window_extent().width > 400
    assert figure.get_tightbbox().x1 <= 8.51
    shown = [text for text in axes.texts[:4] if text.get_visible()]
    boxes = [text.get_window_extent() for text in shown]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert {"zero", "normal"} <= {text.get_text() for text in shown}


def test_zones_are_named_in_black_in_a_dark_style():
    with plt.style.context("dark_background"):
        axes = draw(row=torch.ones(3))
    assert {text.get_color() for text in axes.texts[:4]} == {"black"}


@pytest.mark.parametrize(
    "values",
    [[1.0], None, torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta")],
    ids="list none complex meta".split(),
)
def test_what_is_no_tensor_of_numbers(values):
    with pytest.raises(TypeError, match="'logits' must be a tensor of real numbers; this is"):
        against_range({"logits": values}, FP16, "a title")
    assert plt.get_fignums() == []


def test_what_is_no_mapping_and_no_format():
    with pytest.raises(TypeError, match="against_range needs a dict, such as"):
        against_range([torch.ones(3)], FP16, "a title")
    with pytest.raises(
        TypeError, match=r"needs a format, such as amp_lab\.formats\.FP16, not torch\.float16"
    ):
        against_range({"logits": torch.ones(3)}, torch.float16, "a title")


def test_sparse_tensors_may_be_drawn():
    assert words(draw(row=torch.tensor([0.0, 1e9]).to_sparse()))[4] == "100% inf"
