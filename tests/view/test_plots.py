"""The figures of the lessons: that a run that breaks off can be seen to, and that no error leaves a figure."""

import math
import re

import matplotlib

matplotlib.use("agg")

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab.view.plots import loss_curves

NAN, INF = math.nan, math.inf
FALLING = [2.0, 1.0, 0.5, 0.25]


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


def draw(**losses):
    figure = loss_curves(losses, "a title")
    figure.canvas.draw()
    return figure.axes[0]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def curves(axes):
    return [line for line in axes.lines if line.get_marker() != "X"]


def crosses(axes):
    """Return step and height of each cross; the height is "bottom" for one on the axis."""
    found = [line for line in axes.lines if line.get_marker() == "X"]
    on_axis = axes.get_xaxis_transform()
    return [
        (line.get_xdata()[0], "bottom" if line.get_transform() == on_axis else line.get_ydata()[0])
        for line in found
    ]


def test_three_runs():
    axes = draw(FP32=FALLING, FP16=[0.123456], _own=[3, 2])
    assert legend(axes) == ["FP32: ends at 0.25", "FP16: ends at 0.123", "_own: ends at 2"]
    assert axes.get_title() == "a title"
    assert axes.get_yscale() == "log"
    assert list(curves(axes)[0].get_ydata()) == FALLING
    assert len({line.get_color() for line in axes.lines}) == 3
    assert crosses(axes) == []
    assert axes.get_ylabel() == "training loss (cross-entropy)"


def test_five_runs_can_be_told_apart_without_their_colours():
    figure = loss_curves(dict.fromkeys("abcde", FALLING), "a title", "mean squared error")
    looks = {
        (line.get_linestyle(), line.get_linewidth(), str(line._dash_pattern)) for line in figure.axes[0].lines
    }
    assert len(looks) == 5
    assert len({line.get_color() for line in figure.axes[0].lines}) == 5
    assert figure.axes[0].get_ylabel() == "training loss (mean squared error)"


@pytest.mark.parametrize(
    ("run", "words", "cross"),
    [
        ([2.0, 1.0, NAN, NAN], "NaN from step 2", (2, 1.0)),
        ([2.0, 1.0, INF, NAN], "inf from step 2", (2, 1.0)),
        ([NAN, NAN, NAN], "NaN from step 0", (0, "bottom")),
        ([-INF], "-inf from step 0", (0, "bottom")),
        ([2.0, 0.0, NAN], "NaN from step 2", (2, "bottom")),
        ([2.0, NAN, 1.0], "first NaN at step 1, ends at 1", (1, 2.0)),
        ([NAN, 1.0, NAN], "first NaN at step 0, ends at NaN", (0, "bottom")),
    ],
)
def test_the_first_loss_that_is_not_finite_is_marked(run, words, cross):
    axes = draw(FP32=FALLING, FP16=run)
    assert legend(axes)[1] == f"FP16: {words}"
    assert crosses(axes) == [cross]


def test_steps_without_a_finite_loss_are_on_the_axis():
    low, high = draw(FP16=[NAN] * 100).get_xlim()
    assert low < 0
    assert 99 < high < 110


@pytest.mark.parametrize(
    ("run", "marker"), [([1.0], "o"), ([1.0, NAN, 2.0], "o"), (FALLING, "None"), ([NAN, 2.0, 1.0], "None")]
)
def test_points_that_no_line_would_show_get_a_marker(run, marker):
    axes = draw(run=run)
    assert curves(axes)[0].get_marker() == marker
    assert all(tick == int(tick) for tick in axes.get_xticks()), "there is no half step"


@pytest.mark.parametrize(
    "run",
    [
        tuple(FALLING),
        iter(FALLING),
        np.array(FALLING, dtype=np.float16),
        torch.tensor(FALLING),
        torch.tensor(FALLING, dtype=torch.bfloat16, requires_grad=True),
        [torch.tensor(loss, requires_grad=True) for loss in FALLING],
    ],
    ids="tuple iterator numpy tensor bf16 tensors".split(),
)
def test_every_kind_of_series(run):
    assert list(curves(draw(run=run))[0].get_ydata()) == FALLING


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({}, "1 to 5 runs so that they can be told apart; it was given 0"),
        (dict.fromkeys("abcdef", FALLING), "it was given 6"),
        ({"a": FALLING, "b": []}, "the losses of 'b' are empty: append the loss of every step"),
        ({"b": torch.tensor([])}, "the losses of 'b' are empty"),
        ({"b": [0.0, 0.0]}, "no loss of 'b' is positive (the largest is 0)"),
        ({"b": [-2.0, -1.0]}, "no loss of 'b' is positive (the largest is -1)"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_figure(losses, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        loss_curves(losses, "a title")
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "run",
    [
        1.0,
        "123",
        None,
        torch.tensor(1.0),
        torch.ones(2, 2),
        torch.ones(2, device="meta"),
        np.array([1j]),
        [torch.ones(2)],
        ["x"],
        [None],
    ],
    ids=repr,
)
def test_what_is_no_series_of_numbers(run):
    with pytest.raises(TypeError, match="the losses of 'b' must be one number for each step"):
        loss_curves({"b": run}, "a title")
    assert plt.get_fignums() == []


@pytest.mark.parametrize("losses", [[FALLING], torch.ones(3), None, "abc"], ids=repr)
def test_what_is_no_mapping(losses):
    with pytest.raises(
        TypeError, match=re.escape("loss_curves needs a dict, such as {'FP16': losses}; this is")
    ):
        loss_curves(losses, "a title")


@pytest.mark.parametrize(
    ("run", "labels"),
    [
        ([0.3, 1.9], {"0.3", "0.4", "0.5", "0.7", "1"}),
        ([2.3, 2.29], {"2.292", "2.296"}),
        ([2.0, 0.002], {"0.01", "0.1", "1"}),
    ],
)
def test_the_axis_is_labelled_in_plain_numbers(run, labels):
    axes = draw(run=run)
    low, high = axes.get_ylim()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    shown = {tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high} - {""}
    assert labels <= shown
    assert all(float(label) > 0 for label in shown), "no mathematics such as 3×10⁰"
    if run[1] == 0.002:
        assert shown == labels


def test_losses_that_no_logarithm_shows_are_gaps():
    (line,) = draw(run=[1.0, 2.0, 0.0, 3.0, -1.0, 2.0]).lines
    shown = line.get_ydata()
    assert [math.isnan(value) for value in shown] == [False, False, True, False, True, False]
    assert line.get_markevery() == [3, 5]


LONG = "a name of a run as people write them in long experiments, with $lr$ and all that, second version"


def test_long_names_and_dollars():
    figure = loss_curves({LONG: FALLING, r"$\foo$": FALLING}, LONG * 3)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_window_extent().width > 600
    assert figure.get_tightbbox().x1 <= 8.01
    assert legend(axes)[0].endswith("…: ends at 0.25")
    assert legend(axes)[1] == r"\$\foo\$: ends at 0.25"
    assert axes.get_title().count("\n") == 1


def test_markers_of_a_style_make_no_blobs():
    with plt.rc_context({"lines.marker": "o"}):
        assert draw(run=FALLING).lines[0].get_marker() == "None"
