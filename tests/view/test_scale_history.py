"""The scale over a run, and the simulator: crosses where steps were skipped, stairs where the scale was."""

import io
import itertools
import math
import re
from types import SimpleNamespace

import matplotlib

matplotlib.use("agg")

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab.scaling import DynamicLossScaler, simulate
from amp_lab.view.scale_history import scale_history
from amp_lab.view.scaler_simulator import scaler_simulator

WIDGET = "application/vnd.jupyter.widget-view+json"
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


def history(scales, skipped=()):
    return SimpleNamespace(scales=scales, skipped=[step in skipped for step in range(len(scales))])


HALVED = history([2.0**16, 2.0**16, 2.0**15, 2.0**14, 2.0**14], skipped=(1, 2))


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def panels(figure):
    figure.canvas.draw()
    return figure.axes


def test_scale_and_skips():
    figure = scale_history(HALVED)
    (axes,) = panels(figure)
    found = lines(axes)
    assert found["loss scale"] == ([0, 1, 2, 3, 4], [16, 16, 15, 14, 14])
    assert found["skipped (2)"] == ([1, 2], [16, 15])
    assert figure.get_suptitle() == "2 of 5 steps skipped"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "loss scale")
    assert {"2¹⁴", "2¹⁶"} <= {label.get_text() for label in axes.get_yticklabels()}


def test_losses_below():
    figure = scale_history(HALVED, [2.0, 1.5, NAN, 1.0, 0.5], title="mine")
    above, below = panels(figure)
    assert figure.get_suptitle() == "mine"
    loss, *skips = below.lines
    assert [line.get_xdata()[0] for line in skips] == [1, 2]
    assert [text.get_text() for text in below.get_legend().get_texts()] == ["training loss", "skipped step"]
    assert list(loss.get_ydata())[:2] == [2.0, 1.5]
    assert math.isnan(loss.get_ydata()[2])
    assert below.get_yscale() == "log"
    assert above.get_xlim() == below.get_xlim()
    assert panels(scale_history(HALVED, [0.0, -1.0, 1.0, 1.0, 1.0]))[1].get_yscale() == "linear"
    assert panels(scale_history(HALVED, torch.full((5,), NAN)))[1].get_yscale() == "linear"


def test_the_history_of_a_real_scaler():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = DynamicLossScaler(init_scale=2.0**127, growth_interval=2)
    for _ in range(5):
        optimizer.zero_grad()
        scaler.scale((weight * 16).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    (axes,) = panels(scale_history(scaler.history))
    found = lines(axes)
    assert found["loss scale"][1][:2] == [127, 126]
    assert (
        found["skipped (4)" if "skipped (4)" in found else f"skipped ({sum(scaler.history.skipped)})"][0][0]
        == 0
    )


def test_a_scale_of_zero_leaves_a_gap_and_its_skips_stand_on_the_edge():
    (axes,) = panels(scale_history(history([1.0, 0.5, 0.0], skipped=(0, 1, 2))))
    found = lines(axes)
    assert math.isnan(found["loss scale"][1][2])
    assert found["skipped (3)"] == ([0, 1, 2], [0, -1, axes.get_ylim()[0]])
    assert not axes.lines[1].get_clip_on()


@pytest.mark.filterwarnings("error")  # of a layout that comes to nothing
def test_one_step_is_a_point():
    above, below = panels(scale_history(history([4.0]), [0.7]))
    assert above.lines[0].get_marker() == below.lines[0].get_marker() == "o"
    low, high = below.get_xlim()
    assert [tick for tick in below.get_xticks() if low <= tick <= high] == [0]
    assert min(axes.get_window_extent().height for axes in (above, below)) > 80


def test_a_loss_without_a_neighbour_is_a_point():
    (_, below) = panels(scale_history(HALVED, [2.0, NAN, 1.0, NAN, 0.5]))
    assert below.lines[0].get_markevery() == [0, 2, 4]


@pytest.mark.parametrize("losses", [[0.7] * 5, [0.9, 1.2, 1.9, 2.2, 2.3], [0.3, 0.5, 0.7, 1.4, 1.9]])
def test_labels_of_the_losses_do_not_overlap(losses):
    _, below = panels(scale_history(HALVED, losses))
    low, high = below.get_ylim()
    ticks = [*below.yaxis.get_major_ticks(), *below.yaxis.get_minor_ticks()]
    labels = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
    boxes = sorted((box.y0, box.y1) for box in (label.get_window_extent() for label in labels))
    assert len(boxes) >= 2
    assert all(top <= bottom for (_, top), (bottom, _) in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0],), TypeError, "scale_history needs the history of a scaler (its `.history`)"),
        ((history([]),), ValueError, "a history has a scale and a bool for each step; this one has 0 and 0"),
        ((SimpleNamespace(scales=[1.0], skipped=[]),), ValueError, "this one has 1 and 0"),
        ((history([1.0, INF]),), ValueError, "a loss scale is a positive number; this history has inf"),
        ((history([-1.0]),), ValueError, "this history has -1"),
        ((history([0.0]),), ValueError, "all scales of this history are 0"),
        (
            (HALVED, [1.0]),
            ValueError,
            "there are 1 losses and 5 steps in the history: one loss for each step",
        ),
        ((HALVED, 1.0), TypeError, "losses must be one number for each step"),
        ((HALVED, ["x"] * 5), TypeError, "losses must be one number for each step"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_figure(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        scale_history(*arguments)
    assert plt.get_fignums() == []


# The simulator. A step bears 65520 / peak.

PEAKS = [1.0, 0.5, 4.0, 0.25, 0.25, 0.25]
SETTINGS = {"init_scale": 2.0**15, "growth_interval": 2}


def test_the_start():
    panel = scaler_simulator(PEAKS, simulate, **SETTINGS).panel
    # 2^15 bears 1.0 and 0.5; grows to 2^16, which 4.0 does not bear; 2^15 twice, grows to 2^16.
    assert panel.sentence.value == (
        "6 steps, 1 skipped (16.7 %); the scale grew 2 times, the last step had 2^16 = 65,536. Settings: "
        "init_scale 2^15, growth_interval 2, growth_factor 2, backoff_factor 0.5."
    )
    assert re.search('alt="(.*?)"', panel.picture.value)[1] == panel.sentence.value


def figure_of(simulator):
    figure = simulator._draw()
    figure.canvas.draw()
    return figure.axes[0]


def test_the_picture_shows_the_scale_against_what_each_step_bears():
    axes = figure_of(scaler_simulator(PEAKS, simulate, **SETTINGS))
    found = lines(axes)
    assert found["loss scale"][1] == [15, 15, 16, 15, 15, 16]
    assert found["skipped (1)"] == ([2], [16])
    assert found["overflows above"][1] == [math.log2(65520 / peak) for peak in PEAKS]
    low, high = axes.get_ylim()
    assert low <= 13
    assert high >= 18


def test_sliding_each_setting():
    panel = scaler_simulator(PEAKS, simulate, **SETTINGS).panel
    assert list(panel.sliders) == ["init_scale", "growth_interval", "growth_factor", "backoff_factor"]
    seen = {panel.sentence.value}
    for name, value in {
        "init_scale": 2.0**20,
        "growth_interval": 100,
        "growth_factor": 4.0,
        "backoff_factor": 0.125,
    }.items():
        panel.sliders[name].value = value
        wanted = simulate(PEAKS, **{key: slider.value for key, slider in panel.sliders.items()})
        assert f"6 steps, {sum(wanted.skipped)} skipped" in panel.sentence.value
        seen.add(panel.sentence.value)
    assert len(seen) == 5


def test_a_setting_of_ones_own_is_offered():
    panel = scaler_simulator(PEAKS, simulate, growth_interval=7, init_scale=3.0).panel
    assert panel.sliders["growth_interval"].value == 7
    assert panel.sliders["init_scale"].label == "3"


def test_a_rule_that_refuses_says_so_and_leaves_the_picture():
    def strict(peaks, *, growth_factor, **settings):
        if growth_factor > 2:
            raise ValueError("too <fast>")
        return simulate(peaks, growth_factor=growth_factor, **settings)

    panel = scaler_simulator(PEAKS, strict, **SETTINGS).panel
    before = panel.picture.value
    panel.sliders["growth_factor"].value = 4.0
    assert panel.sentence.value == "too &lt;fast&gt; The picture is still of other settings."
    assert panel.picture.value == before
    with pytest.raises(ValueError, match="too <fast>"):
        scaler_simulator(PEAKS, strict, growth_factor=4.0)


@pytest.mark.parametrize("peaks", [[0.0, 0.0], [NAN, 1.0, INF], [INF], [1e-40, 1e30]])
def test_odd_peaks(peaks):
    panel = scaler_simulator(peaks, simulate).panel
    panel.sliders["growth_interval"].value = 1
    assert panel.sentence.value.startswith(f"{len(peaks)} steps, ")


def test_a_run_that_stops_early():
    stops = simulate([INF] * 9, init_scale=4.0, min_scale=1.0)
    simulator = scaler_simulator([INF] * 9, lambda peaks, **settings: stops)
    assert repr(simulator).startswith("The run stops after 3 of 9 steps, 3 skipped (100 %)")
    assert figure_of(simulator).get_xlim()[1] > 8


def test_numbers_are_written_out():
    said = repr(scaler_simulator([0.0], simulate, init_scale=3_942_100.0, growth_interval=1_000_000))
    assert "the last step had 3,942,100." in said
    assert "growth_interval 1,000,000" in said


def test_labels_of_the_sliders_are_short():
    panel = scaler_simulator(PEAKS, simulate, init_scale=2.0**24).panel
    assert panel.sliders["init_scale"].label == "2^24"


def test_a_thousand_steps_end_at_a_tick():
    axes = figure_of(scaler_simulator([1.0] * 1000, simulate))
    low, high = axes.get_xlim()
    assert 1000 in [tick for tick in axes.get_xticks() if low <= tick <= high]


def test_what_is_infinite_overflows_at_any_scale():
    axes = figure_of(scaler_simulator([INF, INF], simulate))
    bottom, top = axes.get_ylim()
    (filled,) = axes.collections
    heights = filled.get_paths()[0].vertices[:, 1]
    assert heights.min() < bottom
    assert heights.max() > top


def test_large_letters_and_markers_of_a_style_change_nothing():
    plain = scaler_simulator(PEAKS, simulate)._repr_mimebundle_()["image/png"]
    with plt.rc_context({"font.size": 20, "lines.marker": "o"}):
        assert scaler_simulator(PEAKS, simulate)._repr_mimebundle_()["image/png"] == plain


@pytest.mark.parametrize(
    "make", [tuple, iter, np.array, torch.tensor], ids=["tuple", "iterator", "array", "tensor"]
)
def test_every_kind_of_peaks(make):
    assert repr(scaler_simulator(make(PEAKS), simulate, **SETTINGS)).startswith("6 steps, 1 skipped")


@pytest.mark.parametrize(
    ("peaks", "rule", "settings", "error", "message"),
    [
        ([], simulate, {}, ValueError, "peaks is empty"),
        (
            [1.0, -2.0],
            simulate,
            {},
            ValueError,
            "peaks are sizes, the largest |gradient| of each step; this one is -2",
        ),
        ("abc", simulate, {}, TypeError, "peaks must be one number for each step"),
        (1.0, simulate, {}, TypeError, "peaks must be one number for each step"),
        ([1.0], None, {}, TypeError, "simulate must be a function, such as amp_lab.scaling.simulate"),
        ([1.0], simulate, {"init_scale": "big"}, TypeError, "init_scale: a number such as 0.1 is needed"),
        ([1.0], lambda p: 3, {}, TypeError, "simulate must take the peaks and init_scale, growth_interval"),
        (
            [1.0],
            lambda p, **k: 3,
            {},
            TypeError,
            "simulate must return a history of scales and skipped, not 3",
        ),
    ],
)
def test_what_cannot_be_simulated(peaks, rule, settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        scaler_simulator(peaks, rule, **settings)


def test_all_forms_for_a_notebook():
    simulator = scaler_simulator(PEAKS, simulate)
    bundle = simulator._repr_mimebundle_(include=None, exclude=None)
    assert bundle[WIDGET]["model_id"] == simulator.panel.box.model_id
    assert bundle["text/plain"] == repr(simulator)
    assert plt.imread(io.BytesIO(bundle["image/png"])).shape[1] == 800
    assert plt.get_fignums() == []


def test_what_is_drawn_on_the_background_has_the_ink_of_the_style():
    with plt.style.context("dark_background"):
        _, below = panels(scale_history(HALVED, [2.0, 1.5, 1.2, 1.0, 0.5]))
    assert below.lines[0].get_color() == "white"
