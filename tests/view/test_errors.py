"""The figure of growing errors."""

import math

import pytest
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
