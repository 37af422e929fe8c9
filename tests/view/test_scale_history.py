"""The scale over a run, and the simulator: crosses where steps were skipped, stairs where the scale was."""

import io
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
    *skips, loss = below.lines
    assert [line.get_xdata()[0] for line in skips] == [1, 2]
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


def test_a_scale_of_zero_leaves_a_gap():
    (axes,) = panels(scale_history(history([1.0, 0.5, 0.0], skipped=(0, 1, 2))))
    assert math.isnan(lines(axes)["loss scale"][1][2])


def test_one_step_is_a_point():
    (axes,) = panels(scale_history(history([4.0])))
    assert axes.lines[0].get_marker() == "o"


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
        "init_scale 2^15 = 32,768, growth_interval 2, growth_factor 2, backoff_factor 0.5."
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
    assert repr(simulator).startswith(f"{len(stops.scales)} steps, ")
    assert figure_of(simulator).get_xlim() == (-0.5, 8.5)


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
        ([1.0], simulate, {"init_scale": "big"}, TypeError, "a number such as 0.1 is needed"),
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
