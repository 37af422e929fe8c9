"""Comparisons run. Those that take long, and the peers, run in `make soak`: tests/soak/test_benchmarks.py."""

import pytest
import torch

from amp_lab.train.measuring.ladders import Ladder, Rung
from benchmarks import ladder, scaler_step, trainer
from benchmarks.finding import Finding
from benchmarks.training.by_hand import by_hand
from benchmarks.training.task import Task


def test_scaler_step_runs(monkeypatch):
    monkeypatch.setattr(scaler_step, "COUNTS", (10,))
    found = [each.what for each in scaler_step.measure(quick=True)]
    assert found == ["10 tensors, alone", "10 tensors, with SGD"]


def test_the_ladder_s_findings_are_the_rungs_that_were_measured_over_the_lowest():
    rungs = (
        Rung("FP32", "", 4.0, (4.0, 4.0), 1.0),
        Rung("TF32", "", None, None, None, "needs CUDA"),
        Rung("FP16 autocast", "", 1.0, (1.0, 1.0), 4.0),
    )
    climbed = Ladder("A GPU", "cuda", "2026-01-01", "2.13.0", "a model", 5, 1, 0.01, rungs)
    assert ladder.findings(climbed) == [Finding("a step in FP16 autocast ÷ one in FP32", 0.25, noise=0.01)]


def test_trainer_runs_and_trains_as_the_loop_by_hand(monkeypatch):
    """The run itself compares the losses."""
    monkeypatch.setattr(trainer, "peers", list)
    ratios = trainer.measure(quick=True)
    assert [(each.what, each.bar) for each in ratios] == [
        ("amp_lab.Trainer ÷ a loop by hand, a step in FP16", 1.05),
        ("amp_lab.Trainer ÷ a loop by hand, a step in BF16", 1.05),
    ]
    assert all(each.number > 0 for each in ratios)


def test_a_run_that_trains_otherwise_is_found():
    def other(task, loader):
        task.losses.append(0.5)
        by_hand(task, loader)

    with pytest.raises(AssertionError, match=r"other trains differently: loss 0.5 in step 0, by hand 2\.\d+"):
        trainer._timings({"by hand": by_hand, "other": other}, torch.float16, "cpu", 1, 0)


def test_a_run_that_trains_nothing_is_found():
    tasks = {name: Task(torch.bfloat16, "cpu", losses) for name, losses in (("by hand", [0.5]), ("idle", []))}
    with pytest.raises(AssertionError, match="idle has trained no step"):
        trainer._same_training(tasks)


@pytest.mark.parametrize(
    ("dtype", "device", "left_out"),
    [("float16", "cpu", True), ("bfloat16", "cpu", False), ("float16", "cuda", False)],
)
def test_accelerate_is_left_out_where_it_has_no_fp16(dtype, device, left_out):
    (accelerate,) = (each for each in trainer.peers() if each.name == "accelerate")
    why_not = accelerate.why_not(getattr(torch, dtype), device)
    assert ("computes in FP32" in why_not) == left_out
