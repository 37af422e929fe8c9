"""The picture of a training run."""

import math
from types import SimpleNamespace

import pytest
from matplotlib import pyplot as plt

from amp_lab.train.training.history import EpochRecord, History, StepRecord
from amp_lab.view.training_history import training_history


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def run(losses, *, scales=None, skipped=None, dev=(), per_epoch=4):
    history = History()
    for step, loss in enumerate(losses):
        scale = scales[step] if scales else 1.0
        mark = skipped[step] if skipped else ""
        history.steps.append(StepRecord(step // per_epoch, step, loss, 0.1, scale, None, mark, 8))
    history.epochs = [EpochRecord(place, 1.0, loss, {}, 1.0) for place, loss in enumerate(dev)]
    return history


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_losses_of_both_sets():
    figure = training_history(run([4.0, 3.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.6], dev=[1.5, 0.75]))
    (axes,) = figure.axes
    drawn = lines(axes)
    assert drawn["training loss, each step"][1] == [4.0, 3.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.6]
    assert drawn["dev loss, end of each epoch"] == ([3, 7], [1.5, 0.75])
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("training step", "loss", "log")
    assert figure._suptitle.get_text() == "8 steps in 2 finished epochs"


def test_the_loss_scale_below():
    skipped = ["", "overflow", "", "loss"]  # the last one by Trainer, not by the scaler
    history = run([1.0] * 4, scales=[2.0**16, 2.0**16, 2.0**15, 2.0**15], skipped=skipped)
    losses, scale = training_history(history).axes
    assert lines(scale)["loss scale"][1] == [16, 16, 15, 15]
    assert lines(scale)["skipped (1)"][0] == [1]
    assert (losses.get_xlabel(), scale.get_xlabel(), scale.get_ylabel()) == (
        "",
        "training step",
        "loss scale",
    )


def test_losses_that_are_not_finite_leave_a_gap_and_a_mark():
    axes = training_history(run([1.0, math.nan, -1.0, math.inf], skipped=["", "loss", "", "loss"])).axes[0]
    drawn = lines(axes)
    assert axes.figure._suptitle.get_text().endswith("; 2 steps skipped")
    assert [math.isnan(each) for each in drawn["training loss, each step"][1]] == [False, True, False, True]
    assert drawn["loss not finite (2)"][0] == [1, 3]
    assert axes.get_yscale() == "linear"  # a loss below 0


def test_a_long_run_is_smoothed():
    drawn = lines(training_history(run([float(step % 2 + 1) for step in range(400)])).axes[0])
    places, means = drawn["mean of a 50th of the run"]
    assert places[:2] == [3.5, 11.5]
    assert set(means) == {1.5}


def test_an_epoch_without_a_dev_loss_or_a_step_is_left_out():
    history = run([1.0] * 8, dev=[None, 0.5, 0.4])
    assert lines(training_history(history, title="My run").axes[0])["dev loss, end of each epoch"] == (
        [7],
        [0.5],
    )


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"no step yet: call trainer\.fit\(train_loader\) first"):
        training_history(History())
    with pytest.raises(TypeError, match="needs the history of a Trainer; this is a SimpleNamespace"):
        training_history(SimpleNamespace())


def test_plot_of_a_history():
    assert run([2.0, 1.0]).plot("Two steps")._suptitle.get_text() == "Two steps"


def test_losses_over_little_more_than_a_decade_have_more_than_one_number_beside_them():
    """Between 0.25 and 2.5 there is one power of ten."""
    figure = training_history(run([2.5 * 0.1 ** (step / 40) for step in range(41)]))
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert high > 10 * low
    figure.canvas.draw()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    seen = {tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high}
    assert seen == {"0.5", "1", "2"}
