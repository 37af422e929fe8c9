"""What a comparison finds, and where that is kept."""

import json
import sys
from pathlib import Path

import pytest

from amp_lab.train.measure import AGAIN, Timings
from benchmarks.__main__ import COMPARISONS, main
from benchmarks.finding import Finding, against
from benchmarks.results import keep

ROOT = Path(__file__).parents[2]


def test_a_bar_is_met_give_or_take_the_noise():
    timings = Timings("a", {"a": (1.0, 1.0), "b": (1.15, 1.15), "a" + AGAIN: (0.94, 0.94)})
    near, missed = against(timings, "b", "b over a", 1.1), against(timings, "b", "b over a", 1.05)
    assert (near.number, round(near.noise, 2), near.met, missed.met) == (1.15, 0.06, True, False)
    assert "bar 1.1: met" in str(near)
    assert "bar 1.05: MISSED" in str(missed)
    assert "bar" not in str(against(timings, "b", "b over a"))
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
    helpers = {"__init__", "__main__", "finding", "results", "tables"}
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - helpers
    assert modules == set(COMPARISONS)


def test_an_unknown_comparison_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "scaler_stepp"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "there is no comparison 'scaler_stepp'; there are scaler_step" in capsys.readouterr().err


def test_what_is_kept_is_json_with_its_command():
    """Every file under benchmarks/results says how it was made."""
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert path.name.startswith(kept["date"]), path
        assert kept["command"], path
