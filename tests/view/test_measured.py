"""The figures of what was measured: memory bars, the ladder."""

import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgba

from amp_lab.train.measure import plot_accounts, roofline_figure
from amp_lab.view.ladder import ladder_bars
from amp_lab.view.memory_bars import memory_bars
from amp_lab.view.plots import COLOURS
from amp_lab.view.roofline import roofline

MIB = 2**20


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_bars_are_stacked_in_mib():
    accounts = {
        "FP32": {"weights": 4 * MIB, "activations": 8 * MIB, "casts": 0, "nothing": 0},
        "FP16": {"weights": 4 * MIB, "activations": 4 * MIB, "casts": 2 * MIB, "nothing": 0},
    }
    axes = memory_bars(accounts).axes[0]
    bars = [[(bar.get_x(), bar.get_width()) for bar in each] for each in axes.containers]
    assert bars == [[(0, 4), (0, 4)], [(4, 8), (4, 4)], [(12, 0), (8, 2)]]
    assert axes.get_title() == "FP32 keeps 1.20 times as much as FP16"
    assert {text.get_text() for text in axes.texts} >= {"12 MiB", "10 MiB", "8"}
    assert axes.get_xlabel() == "memory (MiB)"
    assert axes.yaxis_inverted()  # the first account is on top


def test_a_category_has_one_colour_in_all_figures():
    """Though one that is empty in all bars of a figure is not drawn there."""
    few, all_three = {"a": 0, "b": MIB, "c": MIB}, {"a": MIB, "b": MIB, "c": MIB}
    few, all_three = (
        {each.get_label(): each[0].get_facecolor() for each in memory_bars({"x": account}).axes[0].containers}
        for account in (few, all_three)
    )
    assert few.keys() == {"b", "c"}
    assert few.items() <= all_three.items()


@pytest.mark.parametrize("wrong", [{}, {"a": 3}, {"a": {}}, {"a": {str(each): 1 for each in range(9)}}, [1]])
def test_no_bars(wrong):
    with pytest.raises((TypeError, ValueError), match="memory_bars"):
        memory_bars(wrong)


def test_a_rung_is_a_bar_or_a_reason():
    axes = ladder_bars({"FP32": 1.0, "TF32": None, "FP16": 0.5}, {"TF32": "no such unit"}, 0.1, "a GPU").axes[
        0
    ]
    bars = [bar for bars in axes.containers for bar in bars]
    assert [bar.get_width() for bar in bars] == [1.0, 0.5]
    assert bars[1].get_facecolor() == to_rgba(COLOURS["orange"])  # slower
    (band,) = (patch for patch in axes.patches if patch not in bars)
    assert (band.get_x(), band.get_width()) == (pytest.approx(0.9), pytest.approx(0.2))
    assert "not measured: no such unit" in [text.get_text() for text in axes.texts]
    assert axes.get_ylim() == (2.5, -0.5)
    with pytest.raises(ValueError, match="no rung that was measured"):
        ladder_bars({"FP32": None}, {}, 0.0, "")


def test_a_roof_rises_and_bends():
    axes = roofline("toy", 1e12, {"FP32": 10e12, "FP16": 80e12}, {"matmul": (20.0, 20e12)}).axes[0]
    fp32, fp16, mark = axes.get_lines()
    assert list(fp32.get_ydata())[1:] == [10, 10]
    assert list(fp16.get_xdata())[1] == 80
    assert fp32.get_ydata()[0] == pytest.approx(
        fp32.get_xdata()[0]
    )  # on the slope: 1 TB/s times the intensity
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([20.0], [20.0])


@pytest.mark.parametrize(
    "wrong", [{"roofs": {}}, {"roofs": {"FP7": 1.0}}, {"bandwidth": 0.0}, {"marks": {"a": (0.0, 1.0)}}]
)
def test_no_roof(wrong):
    with pytest.raises(ValueError, match="roofline"):
        roofline(**{"name": "toy", "bandwidth": 1e12, "roofs": {"FP32": 1e12}, "marks": {}} | wrong)


def test_what_is_no_size_is_not_drawn():
    for bad in (float("nan"), float("inf"), -1, "1"):
        with pytest.raises(ValueError, match="memory_bars draws bytes"):
            memory_bars({"FP32": {"weights": bad}})
        with pytest.raises(ValueError, match="ladder_bars draws ratios"):
            ladder_bars({"FP32": 1.0, "FP16": bad}, {}, 0.0, "")
    assert memory_bars({"a": {"w": 0}, "b": {"w": 1}}).axes[0].get_title() == "a keeps nothing, b does"
    with pytest.raises(ValueError, match="no place on logarithmic axes"):
        roofline_figure("A100", {"nothing": (1, 0, "fp16")})
    with pytest.raises(TypeError, match="a dict of accounts"):
        plot_accounts([1])
