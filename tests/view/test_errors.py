"""The figure of growing errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab.view.errors import error_growth


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_each_way_is_a_curve_with_its_numbers():
    (axes,) = error_growth([4, 16, 64], {"one": [1e-4, 1e-3, 1e-2], "two": [1e-5] * 3}, "A title").axes
    first, second = axes.lines
    assert list(first.get_xdata()) == [4, 16, 64]
    assert list(first.get_ydata()) == [1e-4, 1e-3, 1e-2]
    assert first.get_color() != second.get_color()
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_title() == "A title"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two"]


def test_ticks_are_the_lengths_and_percents():
    figure = error_growth([4, 1024], {"one": [1e-4, 0.5]}, "")
    figure.canvas.draw()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "1,024"]
    assert axes.yaxis.get_major_formatter()(0.01, 0) == "1 %"
    assert axes.yaxis.get_major_formatter()(1e-4, 0) == "0.01 %"


def test_the_last_error_of_each_curve_that_can_be_drawn_is_written_beside_it():
    (axes,) = error_growth([4, 16, 64], {"one": [1e-4, 1e-3, 0.5], "two": [1e-5, 2e-4, math.nan]}, "").axes
    first, second = axes.texts
    assert (first.get_text(), first.xy) == ("50 %", (64, 0.5))
    assert (second.get_text(), second.xy) == ("0.02 %", (16, 2e-4))
    assert [each.get_color() for each in axes.texts] == [line.get_color() for line in axes.lines]


def test_one_rounding_is_a_line_across():
    (axes,) = error_growth([4, 16], {"one": [1e-4, 1e-3]}, "", one_rounding=2**-11).axes
    assert list(axes.lines[-1].get_ydata()) == [2**-11, 2**-11]


def test_what_no_logarithm_shows_is_a_gap():
    (axes,) = error_growth([1, 2, 3, 4], {"one": [0.0, 1e-3, math.inf, math.nan]}, "").axes
    assert [math.isnan(value) for value in axes.lines[0].get_ydata()] == [True, False, True, True]


@pytest.mark.parametrize(
    ("lengths", "errors", "words"),
    [
        ([4], {}, "1 to 5 ways"),
        ([4], {str(n): [0.1] for n in range(6)}, "1 to 5 ways"),
        ([], {"one": []}, "positive and ascending"),
        ([4, 2], {"one": [0.1, 0.1]}, "positive and ascending"),
        ([0, 2], {"one": [0.1, 0.1]}, "positive and ascending"),
        ([4, 8], {"one": [0.1]}, "'one' has 1 errors for 2 lengths"),
        ([4, 8], {"one": [0.0, math.inf]}, "no error of 'one' is positive"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_there_is_a_figure(lengths, errors, words):
    with pytest.raises(ValueError, match=words):
        error_growth(lengths, errors, "")
    assert plt.get_fignums() == []


def test_within_a_decade_every_label_is_in_percent():
    figure = error_growth([4, 16], {"one": [0.1, 0.22]}, "")
    figure.canvas.draw()
    (axes,) = figure.axes
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    assert {"10 %", "20 %"} <= {tick.label1.get_text() for tick in ticks}


def test_small_shares_are_powers_of_ten():
    write = error_growth([4, 16], {"one": [1e-7, 1e-3]}, "").axes[0].yaxis.get_major_formatter()
    assert [write(share, 0) for share in (1e-7, 2e-8, 1e-6)] == ["10⁻⁵ %", "2×10⁻⁶ %", "0.0001 %"]


def test_many_lengths_are_labelled_where_there_is_room():
    lengths = range(1, 61)
    figure = error_growth(lengths, {"one": [0.01 * length for length in lengths]}, "")
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) >= 4
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize("make", [tuple, iter, np.array, torch.tensor], ids="tuple iter array tensor".split())
def test_every_kind_of_series(make):
    figure = error_growth(make([4, 16]), {"one": make([1e-4, 1e-3])}, "")
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([1e-4, 1e-3])


@pytest.mark.parametrize(
    ("lengths", "errors", "one_rounding", "error", "words"),
    [
        (
            [4],
            [[0.1]],
            None,
            TypeError,
            r"error_growth needs a dict, such as \{'FP16': errors\}; this is a list",
        ),
        ("4", {"one": [0.1]}, None, TypeError, "lengths must be one number for each"),
        ([4], {"one": "1"}, None, TypeError, "the errors of 'one' must be one number for each"),
        ([4], {"one": [0.1]}, "x", TypeError, "one_rounding: a number such as 0.1 is needed"),
        ([4], {"one": [0.1]}, -1, ValueError, "one_rounding=-1: it is the largest error of a rounding"),
    ],
)
def test_what_is_no_series_no_mapping_and_no_error(lengths, errors, one_rounding, error, words):
    with pytest.raises(error, match=words):
        error_growth(lengths, errors, "", one_rounding)
    assert plt.get_fignums() == []


def test_names_are_written_as_they_are():
    (axes,) = error_growth([4, 16], {"_own $x$": [0.1, 0.2]}, "$t$", 0.01).axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [r"_own \$x\$", "one rounding, at most"]
    assert axes.get_title() == r"\$t\$"
