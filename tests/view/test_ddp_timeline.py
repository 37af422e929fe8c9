"""The figure of a simulated DDP run."""

import math

import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from amp_lab.train.ddp_simulator import Backward, Barrier, Event, Forward, Load, Skip, Step, Update, simulate
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


def middles(figure):
    """The middle of each bar, and of each text, along the axis of ranks."""
    axes = figure.axes[0]
    return [bar.get_y() + bar.get_height() / 2 for bar in axes.patches], [
        text.get_position()[1] for text in axes.texts
    ]


def test_each_rank_has_a_row_of_its_own_and_one_of_its_network_below():
    kinds = ("forward", "all-reduce", "broadcast", "barrier", "wrong pairing", "load")
    events = [Event(rank, kind, "x", 0, 10, 0) for rank in (0, 1) for kind in kinds]
    bars, words = middles(ddp_timeline(events, 2, {}, "t"))
    own, network = -0.16, 0.22
    expected = [own, network, network, network, network, own]
    assert bars == pytest.approx([*expected, *(1 + each for each in expected)])
    assert words == pytest.approx(bars)


def brightness(colour):
    """The relative luminance of WCAG 2, from 0 to 1."""
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in to_rgb(colour)]
    return sum(part * each for part, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, two):
    """From 1, for colours that are equally bright, to 21, for black and white."""
    low, high = sorted(map(brightness, (one, two)))
    return (high + 0.05) / (low + 0.05)


OWN = ("forward", "backward", "unscale", "clip", "step", "skip", "update", "load", "evaluate", "save")
NETWORK = ("all-reduce", "broadcast", "barrier")


def test_letters_stand_in_the_middle_and_can_be_read_on_their_bars():
    kinds = OWN + NETWORK
    events = [Event(0, kind, "", 10 * place, 10 * place + 10, 0) for place, kind in enumerate(OWN)]
    events += [Event(1, kind, "x", 10 * place, 10 * place + 10, 0) for place, kind in enumerate(NETWORK)]
    axes = ddp_timeline(events, 2, {}, "t").axes[0]
    assert len(axes.texts) == len(axes.patches) == len(kinds)
    for kind, letter, bar in zip(kinds, axes.texts, axes.patches, strict=True):
        assert letter.get_position()[0] == pytest.approx(bar.get_x() + 5), kind
        assert contrast(letter.get_color(), bar.get_facecolor()) > 4.5, (
            kind
        )  # what WCAG asks of small letters


def test_a_step_and_a_skip_differ_without_colours_and_letters():
    events = [Event(0, kind, "", place, place + 1, 0) for place, kind in enumerate(("step", "skip"))]
    step, skip = ddp_timeline([*events, Event(0, "load", "", 0, 999, 0)], 1, {}, "t").axes[0].patches[:2]
    assert contrast(step.get_facecolor(), skip.get_facecolor()) > 2
    assert step.get_edgecolor()[3] == 0, "an edge would cover a narrow bar"


def test_the_new_scale_stands_above_the_end_of_its_update():
    events = [Event(0, "update", "scale 8", 0, 0.1, 0), Event(0, "load", "", 0, 90, 1)]
    _, text = ddp_timeline(events, 1, {}, "t").axes[0].texts
    assert (text.get_text(), text.get_position()) == ("scale 8", (0.1, -0.38))


def test_scales_that_would_cover_each_other_are_left_out():
    events = [
        Event(rank, "update", f"scale {2**step}", step, step + 1, step)
        for step in range(40)
        for rank in (0, 1)
    ]
    figure = ddp_timeline(events, 2, {}, "t")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if "scale" in text.get_text()]
    assert 8 <= len(boxes) < 40
    assert not any(one.overlaps(two) for place, one in enumerate(boxes) for two in boxes[:place])
    assert (
        texts(figure)[-2:] == texts(ddp_timeline(events[::-1], 2, {}, "t"))[-2:]
    )  # in whichever order they come


def test_who_waits_for_ever_does_so_until_the_right_edge():
    figure = ddp_timeline([Event(0, "load", "", 0, 10, 0)], 2, {0: (10, "barrier"), 1: (4, None)}, "t")
    axes = figure.axes[0]
    assert axes.get_xlim() == pytest.approx((0, 14.5))
    bars, words = middles(figure)
    assert bars == pytest.approx([-0.16, -0.16])
    halt = axes.patches[1]
    assert (halt.get_x(), halt.get_width()) == pytest.approx((10, 4.5))
    assert halt.get_hatch()
    assert texts(figure) == ["Lo", "barrier", "has ended"]
    assert words[1:] == pytest.approx([-0.16, 0.84])
    assert axes.texts[2].get_position()[0] == pytest.approx(4.145)
    assert ddp_timeline([], 1, {0: (0.0, "barrier")}, "t").axes[0].get_xlim() == pytest.approx((0, 1.45))


def test_a_letter_on_strokes_needs_more_room():
    events = [
        Event(0, kind, kind[0], start, start + width, 0)
        for kind, start, width in (
            ("all-reduce", 0, 16),
            ("wrong pairing", 20, 16),
            ("wrong pairing", 40, 30),
        )
    ]
    figure = ddp_timeline([*events, Event(0, "load", "", 0, 990, 0)], 1, {}, "t")
    assert texts(figure) == ["a", "w", "Lo"]
    assert figure.axes[0].texts[1].get_position()[0] == 55


def test_words_are_no_formulas():
    figure = ddp_timeline([Event(0, "all-reduce", r"$\frac$", 0, 5, 0)], 1, {}, "t")
    figure.canvas.draw()
    assert texts(figure) == [r"$\frac$"]


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


def test_the_title_of_a_large_deadlock_stands_in_one_line():
    figure = simulate(lambda rank: ONE * (13 if rank else 12), 8, buckets=10).plot()
    figure.canvas.draw()
    (title,) = [text for text in figure.findobj(Text) if "deadlock" in text.get_text()]
    assert title.get_text().endswith(", up to 3,250 MB each, then a deadlock")
    assert "\n" not in title.get_text()
    assert title.get_window_extent().x1 < figure.bbox.x1


def test_a_long_title_is_broken_into_lines_that_fit():
    figure = ddp_timeline([Event(0, "load", "", 0, 5, 0)], 1, {}, "what happens and why " * 7)
    figure.canvas.draw()
    (title,) = [text for text in figure.findobj(Text) if "happens" in text.get_text()]
    assert title.get_text().count("\n") == 1
    assert title.get_text().endswith("why")
    assert title.get_window_extent().x1 < figure.bbox.x1


def test_a_micro_batch_that_is_waited_for_is_not_cut_at_its_hyphen():
    figure = simulate([[*ONE[:2] * 4], [*ONE[:2] * 3]]).plot()
    figure.canvas.draw()
    (text,) = [text for text in figure.axes[0].texts if "micro-batch" in text.get_text()]
    assert text.get_text() == "all-reduce of bucket 0 of step 0,\nmicro-batch 3"
    halt = figure.axes[0].patches[-1].get_window_extent()
    box = text.get_window_extent()
    assert halt.x0 <= box.x0 < box.x1 <= halt.x1
    assert halt.y0 <= box.y0 < box.y1 <= halt.y1


def test_infinities_and_new_scales_are_written():
    figure = simulate([[Forward(), Backward(gradients=math.inf), *ONE[2:]], ONE]).plot("One for all")
    assert texts(figure).count("B∞") == 1
    assert texts(figure).count("0∞") == 2
    assert texts(figure).count("scale 32,768") == 2
    assert texts(figure).count("X") == 2
    assert figure.axes[0].get_title("left") == "One for all"


def test_a_wrong_pairing_has_its_own_look():
    def loop(rank):
        return [*ONE, *([Forward(), Skip()] if rank else ONE), *ONE]

    assert "wrong pairing" in keys(simulate(loop, 2).plot())
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
