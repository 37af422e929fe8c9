"""Interleaved timing, what it finds, and where that is kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import side_by_side as module
from benchmarks.__main__ import COMPARISONS
from benchmarks.results import keep
from benchmarks.side_by_side import AGAIN, Finding, Timings, side_by_side

ROOT = Path(__file__).parents[2]


class Clock:
    """Time that passes only when a way is called."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def way(self, name, seconds):
        def call():
            self.calls.append(name)
            self.now += seconds

        return call


def test_ways_are_compared_with_the_baseline_and_that_with_itself(monkeypatch):
    clock = Clock(monkeypatch)
    timings = side_by_side(
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

    timings = side_by_side({"x": slow_at_first}, baseline="x", rounds=3, warm_up=2)
    assert timings.seconds == {"x": (1.0,) * 3, "x" + AGAIN: (1.0,) * 3}


def test_what_a_way_left_unfinished_is_waited_for(monkeypatch):
    clock = Clock(monkeypatch)
    pending = []

    def synchronize():
        clock.now += sum(pending)
        pending.clear()

    timings = side_by_side(
        {"x": lambda: pending.append(7.0)}, baseline="x", rounds=2, warm_up=0, synchronize=synchronize
    )
    assert timings.median("x") == 7.0


def test_what_prepares_a_way_is_not_timed(monkeypatch):
    clock = Clock(monkeypatch)
    prepared = []

    def prepare(way):
        prepared.append(way)
        clock.now += 5.0

    def work():
        clock.now += {"x": 1.0, "y": 2.0}[prepared[-1]]

    timings = side_by_side({"x": work, "y": work}, baseline="x", rounds=3, warm_up=1, prepare=prepare)
    assert timings.seconds == {"x": (1.0,) * 3, "y": (2.0,) * 3, "x" + AGAIN: (1.0,) * 3}
    assert (prepared.count("x"), prepared.count("y")) == (8, 4)


@pytest.mark.parametrize("arguments", [{"baseline": "y"}, {"baseline": "x", "rounds": 0}])
def test_nothing_to_time_is_an_error(arguments):
    with pytest.raises(ValueError, match=r"none of the ways: x|at least one round"):
        side_by_side({"x": int}, **arguments)


def test_a_bar_is_met_give_or_take_the_noise():
    timings = Timings("a", {"a": (1.0, 1.0), "b": (1.15, 1.15), "a" + AGAIN: (0.94, 0.94)})
    near, missed = timings.against("b", "b over a", 1.1), timings.against("b", "b over a", 1.05)
    assert (near.number, round(near.noise, 2), near.met, missed.met) == (1.15, 0.06, True, False)
    assert "bar 1.1: met" in str(near)
    assert "bar 1.05: MISSED" in str(missed)
    assert "bar" not in str(timings.against("b", "b over a"))
    assert not Finding("bytes", 3, 2).met


def test_findings_are_kept_with_what_they_depend_on(tmp_path):
    path = keep("x", "python -m benchmarks x", [Finding("a", 1.2, 1.1)], folder=tmp_path / "new", steps=7)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert path.name.startswith(f"{kept['date']}_x_")
    assert (kept["command"], kept["steps"]) == ("python -m benchmarks x", 7)
    assert kept["findings"] == [
        {"what": "a", "number": 1.2, "bar": 1.1, "noise": 0.0, "unit": "×", "met": False}
    ]
    assert kept["torch"]
    assert kept["device"]


def test_every_comparison_is_in_the_list():
    helpers = {"__init__", "__main__", "side_by_side", "results"}
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - helpers
    assert modules == set(COMPARISONS)


def test_an_unknown_comparison_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "scaler_stepp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no comparison 'scaler_stepp'; there are scaler_step" in done.stderr


def test_what_is_kept_is_json_with_its_command():
    """Every file under benchmarks/results says how it was made."""
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert path.name.startswith(kept["date"]), path
        assert kept["command"], path
