"""The figure of a simulated DDP run."""

import math

import pytest
from matplotlib import pyplot as plt

from amp_lab.train.ddp_simulator import Backward, Barrier, Event, Forward, Load, Step, Update, simulate
from amp_lab.view.ddp_timeline import ddp_timeline

ONE = [Forward(), Backward(), Step(), Update()]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def keys(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_bars_stand_where_the_events_are():
    events = [
        Event(0, "forward", "", 0, 5, 0),
        Event(1, "all-reduce", "3∞", 2, 4, 0),
        Event(1, "load", "", 0, 2, 0),
    ]
    figure = ddp_timeline(events, 2, {}, "A title")
    axes = figure.axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 5), (2, 2), (0, 2)]
    assert texts(figure) == ["F", "3∞", "Lo"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert axes.yaxis_inverted()
    assert axes.get_xlabel() == "time (ms)"
    assert axes.get_title("left") == "A title"
    assert keys(figure) == ["F  forward", "all-reduce (number: bucket)", "Lo  load"]
    assert figure.get_figwidth() == 9


def test_a_narrow_bar_has_no_letter():
    figure = ddp_timeline(
        [Event(0, "forward", "", 0, 100, 0), Event(0, "step", "", 100, 100.2, 0)], 1, {}, "t"
    )
    assert texts(figure) == ["F"]


def test_a_deadlock_says_who_waits_in_what():
    figure = simulate([[*ONE, Barrier()], ONE]).plot()
    assert "barrier" in texts(figure)
    assert "has ended" in texts(figure)
    assert keys(figure)[-1] == "waits for ever"
    assert figure.axes[0].get_title("left").endswith("then a deadlock")


def test_infinities_and_new_scales_are_written():
    figure = simulate([[Forward(), Backward(gradients=math.inf), *ONE[2:]], ONE]).plot("One for all")
    assert texts(figure).count("B∞") == 1
    assert texts(figure).count("0∞") == 2
    assert texts(figure).count("scale 32,768") == 2
    assert texts(figure).count("X") == 2
    assert figure.axes[0].get_title("left") == "One for all"


def test_a_wrong_pairing_has_its_own_look():
    def loop(rank):
        return [*ONE, *([Forward()] if rank else ONE), *ONE]

    names = keys(simulate(loop, 2).plot())
    assert "wrong pairing" not in names  # rank 1 counts no step that it leaves out without Skip
    events = [Event(0, "wrong pairing", "0", 0, 5, 0)]
    figure = ddp_timeline(events, 1, {}, "t")
    assert keys(figure) == ["wrong pairing"]
    assert figure.axes[0].patches[0].get_hatch()


def test_letters_stand_apart_in_a_picture_of_two_steps():
    figure = simulate([Load(), *ONE] * 2, 2).plot()
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert not any(one.overlaps(two) for place, one in enumerate(boxes) for two in boxes[:place])
    inside = figure.bbox
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no event"),
        ([Event(2, "step", "", 0, 1, 0)], "ranks 0 to 1"),
        ([Event(0, "step", "", 2, 1, 0)], "finite times"),
        ([Event(0, "step", "", 0, math.inf, 0)], "finite times"),
    ],
)
def test_what_cannot_be_drawn(events, message):
    with pytest.raises(ValueError, match=message):
        ddp_timeline(events, 2, {}, "t")
    assert plt.get_fignums() == []
