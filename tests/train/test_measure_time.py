"""Interleaved timing: what counts, and what does not."""

import math

import pytest
import torch

from amp_lab.train.measure import AGAIN, Timings, compare, one_thread
from amp_lab.train.measuring import clocks


class Clock:
    """Time that passes only when a way is called."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(clocks.time, "perf_counter", lambda: self.now)

    def way(self, name, seconds):
        def call():
            self.calls.append(name)
            self.now += seconds

        return call


def test_ways_are_compared_with_the_baseline_and_that_with_itself(monkeypatch):
    clock = Clock(monkeypatch)
    timings = compare(
        {"torch": clock.way("torch", 2.0), "ours": clock.way("ours", 3.0)},
        baseline="torch",
        rounds=5,
        warm_up=2,
    )
    assert (timings.ratio("ours"), timings.ratio("torch"), timings.noise) == (1.5, 1.0, 0.0)
    assert {name: len(each) for name, each in timings.seconds.items()} == dict.fromkeys(
        ("torch", "ours", "torch" + AGAIN), 5
    )
    rounds = [tuple(clock.calls[start : start + 3]) for start in range(0, len(clock.calls), 3)]
    assert len(rounds) == 7
    assert all(sorted(each) == ["ours", "torch", "torch"] for each in rounds)
    assert len(set(rounds)) > 1, "always in the same order"
    assert "1.500 × torch" in str(timings)


def test_warm_up_does_not_count(monkeypatch):
    clock = Clock(monkeypatch)
    pace = iter([100.0] * 4 + [1.0] * 6)

    def slow_at_first():
        clock.now += next(pace)

    timings = compare({"x": slow_at_first}, baseline="x", rounds=3, warm_up=2)
    assert timings.seconds == {"x": (1.0,) * 3, "x" + AGAIN: (1.0,) * 3}


def test_what_a_way_left_unfinished_is_waited_for(monkeypatch):
    clock = Clock(monkeypatch)
    pending = []

    def wait():
        clock.now += sum(pending)
        pending.clear()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    timings = compare({"x": lambda: pending.append(7.0)}, baseline="x", rounds=2, warm_up=0)
    assert timings.seconds["x"] == (7.0, 7.0)


def test_what_prepares_a_way_is_not_timed(monkeypatch):
    clock = Clock(monkeypatch)
    prepared = []

    def prepare(way):
        prepared.append(way)
        clock.now += 5.0

    def work():
        clock.now += {"x": 1.0, "y": 2.0}[prepared[-1]]

    timings = compare({"x": work, "y": work}, baseline="x", rounds=3, warm_up=1, prepare=prepare)
    assert timings.seconds == {"x": (1.0,) * 3, "y": (2.0,) * 3, "x" + AGAIN: (1.0,) * 3}
    assert (prepared.count("x"), prepared.count("y")) == (8, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"baseline": "y"}, "none of the ways: x"),
        ({"rounds": 0}, "at least one round"),
        ({"warm_up": -1}, "at least one round"),
        ({"rounds": 2.5}, "whole numbers"),
        ({"ways": {"x": 3}}, "what is to be called"),
        ({"ways": {}}, "there are none"),
        ({"ways": {"x": int, "y (again)": int}}, "second turn"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"device": "gpu"}, "no device of PyTorch"),
        ({"ways": [int]}, "ways is a dict"),
        ({"ways": {1: int}, "baseline": 1}, "ways is a dict"),
        ({"seed": [1]}, "whole number"),
    ],
)
def test_what_cannot_be_timed_is_refused(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises((ValueError, TypeError), match=message):
        compare(**{"ways": {"x": int}, "baseline": "x"} | arguments)


def test_the_spread_is_that_of_the_middle_half():
    timings = Timings("x", {"x": (5.0, 1.0, 2.0, 100.0, 3.0), "x" + AGAIN: (1.0,)})
    assert timings.spread("x") == (2.0, 5.0)
    assert timings.spread("x" + AGAIN) == (1.0, 1.0)
    assert "half of them 2000 to 5000" in str(timings)


def test_one_thread_is_for_a_while():
    threads = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_a_way_that_raises_is_named():
    calls = []

    def third_time():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        compare({"FP32": int, "AMP": third_time}, baseline="FP32", rounds=9, warm_up=0)
    assert caught.value.__notes__ == ["compare was timing 'AMP', in round 3 of 9"]


def test_a_baseline_that_takes_no_time_has_no_ratios():
    timings = Timings("x", {"x": (0.0,), "y": (1.0,), "x" + AGAIN: (0.0,)})
    assert math.isnan(timings.ratio("y"))
    assert "nan × x" in str(timings)


def test_events_belong_to_the_device_that_is_asked_about(monkeypatch):
    said = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            said.append(stream)

        def elapsed_time(self, end):
            return 7000.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append(str(device)))
    timings = compare({"x": lambda: said.append("x")}, baseline="x", rounds=1, warm_up=0, device="cuda:1")
    assert timings.seconds["x"] == (7.0,)
    assert said[:5] == ["cuda:1", "stream of cuda:1", "x", "stream of cuda:1", "cuda:1"]
