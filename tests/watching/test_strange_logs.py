"""The log reader on strangers' logs: silent where the run is healthy, right where it is not, and honest."""

import csv
import functools
import gzip
import os
import random
import threading

import pytest
import torch

from amp_lab.watching.logs import reading
from amp_lab.watching.logs.diagnosing import diagnose
from amp_lab.watching.logs.errors import LogError
from tests.watching import strange_logs as strange
from tests.watching.logged_runs import every, write_csv

train = functools.cache(strange.train)


def report_of(tmp_path, content, name="log.csv", **columns):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return diagnose(path, **columns)


def only(report):
    (finding,) = report.findings
    return finding


def unknown(report):
    return " ".join(report.runs[0].unknown)


WANDB = {"step": "Step", "loss": "dry-sun-7 - train/loss", "scale": "dry-sun-7 - train/loss_scale"}
HEALTHY = {
    "slashes": lambda rows: strange.table(strange.renamed(rows, strange.SLASHES)),
    "Excel": lambda rows: strange.table(strange.renamed(rows, strange.SHORT), ";", ",").encode("utf-8-sig"),
    "UTF-16": lambda rows: strange.table(strange.renamed(rows, strange.SHORT), "\t").encode("utf-16"),
    "latin": lambda rows: strange.table([{**row, "pr\xe9cision": "a"} for row in rows]).encode("latin-1"),
    "wandb": lambda rows: strange.table(strange.renamed(every(rows, 10), WANDB), quoting=csv.QUOTE_ALL),
    "lightning": strange.lightning,
    "trainer_state": lambda rows: strange.trainer_state(every(rows, 10)),
    "strings": strange.json_lines,
    "null": lambda rows: strange.json_lines(rows, lambda _: None),
    "gzip": lambda rows: gzip.compress(strange.table(rows).encode()),
    "twice": lambda rows: 2 * strange.table(rows),
    "resumed": lambda rows: strange.table([*rows[:100], *rows[80:]]),
    "loss alone": lambda rows: strange.table(strange.renamed(rows, {"step": "step", "loss": "loss"})),
}


@pytest.mark.parametrize("shape", HEALTHY)
@pytest.mark.parametrize("seed", range(2))
def test_healthy_logs_are_silent_in_each_shape(tmp_path, shape, seed):
    report = report_of(tmp_path, HEALTHY[shape](train(seed=seed)))
    assert report.ok, report.findings
    assert report.columns["loss"]
    assert "→" in report.runs[0].seen[0]


@pytest.mark.parametrize(
    "rows",
    [
        lambda: train(init_scale=2.0**30),
        lambda: train(steps=300, growth_interval=10),
        lambda: train(dtype=torch.bfloat16, scaled=False),
        lambda: train(steps=60, growth_interval=2000),
        lambda: train(steps=300, growth_factor=4.0, init_scale=2.0**4, growth_interval=20),
    ],
    ids=["start too high", "short interval", "BF16", "too short to grow", "growth_factor 4"],
)
def test_other_healthy_runs_are_silent(tmp_path, rows):
    assert report_of(tmp_path, strange.table(rows())).ok


@pytest.mark.parametrize("kind", ["loss", "scale"])
def test_a_scalar_of_tensorboard_needs_its_kind(tmp_path, kind):
    content = strange.tensorboard(train(), kind)
    with pytest.raises(LogError, match="Wall time, Step, Value; name them with --loss"):
        report_of(tmp_path, content)
    report = report_of(tmp_path, content, **{kind: "Value"})
    assert report.ok
    assert report.columns == {kind: "Value", "step": "Step"}


def test_a_scale_of_zero_is_not_called_stuck(tmp_path):
    rows = train(steps=400, huge_from=100)
    assert sum(row["scale"] == 0 for row in rows) > 20
    finding = only(report_of(tmp_path, strange.table(rows)))
    assert (finding.id, finding.sure) == ("forward-overflow", "probable")
    assert "at step 100 (line 102)" in finding.evidence[0]
    assert "learning rate" not in finding.sentence + finding.todo


@pytest.mark.parametrize("scaled", [True, False])
def test_a_run_that_diverges_is_not_blamed_on_precision(tmp_path, scaled):
    rows = train(lr=30.0, scaled=scaled, dtype=torch.float16 if scaled else torch.float32, steps=200)
    content = strange.table(rows if scaled else strange.renamed(rows, strange.TRAINER))
    finding = only(report_of(tmp_path, content))
    assert finding.id == ("scale-sinks" if scaled else "loss-not-finite")
    assert "the run diverges (a learning rate" in finding.sentence
    assert "mixed precision is not the cause" in finding.sentence
    assert "in FP32" in finding.todo
    grown = next(line for line in finding.evidence if line.startswith("the loss had grown"))
    assert f"{rows[0]['loss']:.4g} at step 0" in grown


@pytest.mark.parametrize(("falls_from", "found"), [(0, "scale-sinks"), (20, "forward-overflow")])
def test_the_growth_before_a_fall_is_told_wherever_the_fall_begins(tmp_path, falls_from, found):
    rows = [
        {
            "step": step,
            "loss": 2.0**step if step < 20 else "inf",
            "scale": 2.0 ** (16 - max(0, step - falls_from)),
        }
        for step in range(80)
    ]
    finding = only(report_of(tmp_path, strange.table(rows)))
    assert finding.id == found
    assert "the run diverges" in finding.sentence
    assert (
        "the loss had grown before, from 1 at step 0 (line 2) to 2^19 at step 19 (line 21)"
        in finding.evidence
    )


@pytest.mark.parametrize(
    ("least", "late", "diverges"),
    [(1e-4, 0.02, False), (1e-4, 2.5, False), (0.1, 5.0, False), (0.1, 250.0, True)],
)
def test_noise_of_a_small_loss_is_no_divergence(tmp_path, least, late, diverges):
    losses = [2.0, 0.5, 0.2, least, 0.15, late, "nan", "nan", "nan"]
    rows = [{"step": step, "loss": loss, "grad_norm": 0.1} for step, loss in enumerate(losses)]
    assert ("diverges" in only(report_of(tmp_path, strange.table(rows))).sentence) is diverges


def test_a_step_that_was_taken_with_infinite_gradients(tmp_path):
    good = [{"step": step, "loss": 2.0 - step / 50, "grad_norm": 1 / (1 + step)} for step in range(51)]
    rows = [*good, *({"step": step, "loss": "nan", "grad_norm": "nan"} for step in range(51, 80))]
    rows[50]["grad_norm"] = "inf"
    finding = only(report_of(tmp_path, strange.table(rows)))
    assert (finding.id, finding.sure) == ("loss-not-finite", "probable")
    assert "a step was taken with gradients that were not finite" in finding.sentence
    assert "the norm was not finite before, at step 50 (line 52)" in finding.evidence


def test_without_a_scaler_no_scheduler_ought_to_wait(tmp_path):
    rows = train(dtype=torch.bfloat16, scaled=False)
    rows = [
        {**row, "lr": 0.01 / (1 + row["step"])}
        for row in strange.renamed(rows, strange.TRAINER | {"lr": "lr"})
    ]
    rows = [{**row, "grad_norm": "nan" if row["step"] in (50, 90) else row["grad_norm"]} for row in rows]
    report = report_of(tmp_path, strange.table(rows))
    assert "lr" in report.columns
    assert report.ok
    assert "were skipped (a GradScaler does that) or taken" in unknown(report)


@pytest.mark.parametrize("shape", [strange.table, strange.json_lines])
def test_nan_in_the_data_without_a_scaler(tmp_path, shape):
    rows = train(dtype=torch.bfloat16, scaled=False, poisoned=(100,))
    report = report_of(tmp_path, shape(strange.renamed(rows, strange.TRAINER)))
    finding = only(report)
    assert (finding.id, finding.sure) == ("loss-not-finite", "probable")
    assert "its data has NaN; its step was taken" in finding.sentence
    assert "the norm was still finite at step 99" in " ".join(finding.evidence)
    assert "GradScaler" not in finding.todo
    assert "60 of 160" in finding.evidence[0]
    assert "the norm is not finite in 60 of 160 rows" in report.runs[0].seen
    assert "skipped step" not in " ".join(report.runs[0].seen)


def test_a_nan_that_transformers_writes_as_zero(tmp_path):
    rows = train(dtype=torch.bfloat16, scaled=False, poisoned=(100,))
    finding = only(report_of(tmp_path, strange.trainer_state(rows[::5])))
    assert finding.id == "loss-not-finite"
    assert "at step 100" in finding.sentence
    assert "12 of 32 rows" in finding.evidence[0]
    assert "in 12 rows the loss is exactly 0" in finding.evidence[1]


def test_nan_in_the_data_of_one_step_that_a_scaler_skips(tmp_path):
    finding = only(report_of(tmp_path, strange.table(train(poisoned=(100,)))))
    assert (finding.id, finding.sure) == ("loss-not-finite", "possible")
    assert "its data has NaN" in finding.sentence
    assert "step 100 (line 102)" in finding.todo


def test_two_skipped_batches_in_a_row_are_not_called_taken(tmp_path):
    rows = train(poisoned=(100,))
    rows = [{**row, "loss": 1.0} if row["step"] == 100 else row for row in rows]
    after = {**rows[101], "loss": "nan", "norm": "nan"}
    content = strange.table([*rows[:101], after, *rows[102:]])
    said = only(report_of(tmp_path, content))
    assert "taken" not in said.sentence
    assert "the step before was skipped, too, at step 100" in " ".join(said.evidence)


def test_a_loss_that_is_empty_from_some_row_on_is_told(tmp_path):
    rows = train(steps=200, huge_from=100)
    report = report_of(tmp_path, strange.json_lines(rows, lambda _: None))
    assert only(report).id == "scale-sinks"
    assert "the loss is empty from step 100 (line 101) on, in 100 rows" in unknown(report)
    seldom = [row if row["step"] % 10 == 0 else {**row, "loss": ""} for row in train()]
    assert "the loss is empty" not in unknown(report_of(tmp_path, strange.table(seldom)))


def test_a_constant_scale_is_not_excused_after_2000_steps(tmp_path):
    rows = [{"step": step, "loss": 1 / (step + 1), "scale": 1024} for step in range(0, 3001, 10)]
    assert "in 2,000 steps the scale need not have grown yet" in unknown(
        report_of(tmp_path, strange.table(rows[:201]))
    )
    assert "in 3,000 steps the scale has not grown, though" in unknown(
        report_of(tmp_path, strange.table(rows))
    )


@pytest.mark.parametrize(("cell", "kind"), [("1.2e-02*", "loss"), ("64k", "scale")])
def test_cells_that_are_no_numbers_are_told(tmp_path, cell, kind):
    rows = [{**row, kind: cell} for row in train()[:30]]
    report = report_of(tmp_path, strange.table(rows))
    assert kind not in report.columns
    assert f"30 cells of the column {kind!r}" in report.notes[0]
    assert repr(cell) in report.notes[0]
    few = [*train()[:30], {**train()[30], kind: cell}, {**train()[31], kind: "None"}]
    assert "1 cell of the column" in report_of(tmp_path, strange.table(few)).notes[0]


def scaler_log(interval, *, seed, noise, init, top, every_nth, rows, new_at=None):
    """What GradScaler's rule makes of the scale when steps overflow above about `top`; each nth step is logged."""
    chance, scale, good, logged = random.Random(seed), init, 0, []
    for step in range(every_nth * rows):
        if step == new_at:
            scale, good = init, 0
        if step % every_nth == 0:
            logged.append({"step": step, "loss": 1.0, "scale": scale})
        good += 1
        if scale > top * 2 ** chance.gauss(0, noise):
            scale, good = scale / 2, 0
        elif good == interval:
            scale, good = 2 * scale, 0
    return logged


@pytest.mark.parametrize("noise", [0, 0.5, 3])
@pytest.mark.parametrize("init", [2.0**14, 2.0**16])
def test_fast_growth_seen_now_and_then_is_not_called_a_restart(tmp_path, noise, init):
    undecided = 0
    for interval in (1, 2, 3, 10):
        for seed in range(10):
            log = scaler_log(interval, seed=seed, noise=noise, init=init, top=2.0**16, every_nth=10, rows=40)
            report = report_of(tmp_path, strange.table(log))
            assert "scale-restarted" not in [finding.id for finding in report.findings], (interval, seed)
            undecided += "a scaler made anew or growth every" in unknown(report)
    assert undecided or (noise, init) == (0, 2.0**16)


def test_a_restart_of_a_calm_scaler_is_seen_now_and_then_too(tmp_path):
    log = scaler_log(2000, seed=0, noise=0, init=2.0**16, top=2.0**8, every_nth=10, rows=80, new_at=410)
    finding = only(report_of(tmp_path, strange.table(log)))
    assert (finding.id, finding.sure) == ("scale-restarted", "possible")


def test_a_rise_to_another_scale_is_no_restart_where_steps_are_missing(tmp_path):
    scales = [2.0**16] + [2.0**8] * 20 + [2.0**11] * 20
    rows = [{"step": 10 * k, "loss": 1.0, "scale": scale} for k, scale in enumerate(scales)]
    assert report_of(tmp_path, strange.table(rows)).ok


@pytest.mark.parametrize(("apart", "sure"), [(0.33, "probable"), (0.57, "possible"), (0.75, None)])
def test_a_norm_that_moves_with_the_scale_by_uneven_amounts(tmp_path, apart, sure):
    rows, scale, norm = [], 2.0**10, 1.0
    for k in range(7):
        rows += [{"loss": 1.0, "scale": scale, "grad_norm": norm}] * 20
        way = 1 if k % 2 == 0 else -1
        norm *= 2 ** (way * (1 + apart if k % 2 == 0 else 1 - apart))  # once more than the scale, once less
        scale *= 2**way
    rows = [{"step": step, **row} for step, row in enumerate(rows)]
    found = report_of(tmp_path, strange.table(rows)).findings
    assert [(each.id, each.sure) for each in found] == ([("norm-follows-scale", sure)] if sure else [])


def test_more_than_is_read_is_said(tmp_path, monkeypatch):
    content = strange.table(train()).encode()
    monkeypatch.setattr(reading, "LARGEST", len(content))
    assert report_of(tmp_path, content).ok
    assert report_of(tmp_path, gzip.compress(content)).ok
    for more in (content + b"\n", gzip.compress(content + b"\n")):
        with pytest.raises(LogError, match=r"holds more than .* `head -n 200000` writes"):
            report_of(tmp_path, more)


def test_a_file_without_permission(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = write_csv(tmp_path / "log.csv", train())
    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(LogError, match=r"log\.csv cannot be read: Permission denied"):
        diagnose(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_of_the_shell_is_read(tmp_path, packed):
    content = strange.table(train()).encode()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(content) if packed else content,)
    )
    writer.start()
    report = diagnose(tmp_path / "pipe")
    writer.join()
    assert report.runs[0].rows == 160
