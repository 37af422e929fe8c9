"""The log reader: on logs of loops that really ran, each with one fault or none, and on files as people have them."""

import functools
import gzip
import json
import math
import re

import pytest

from amp_lab.course.lessons.l07 import runs as lesson
from amp_lab.watching.logs.diagnosing import diagnose
from amp_lab.watching.logs.errors import LogError
from amp_lab.watching.logs.numbers import in_words, number
from tests.watching.logged_runs import every, run, without, write_csv, write_jsonl

rows_of = functools.cache(run)


def ids(path, **columns):
    return [finding.id for finding in diagnose(path, **columns).findings]


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("init", [2.0**8, 2.0**14, 2.0**20])
@pytest.mark.parametrize("seed", range(2))
def test_healthy_runs_are_silent(tmp_path, seed, init, after, count):
    rows = every(rows_of(seed=seed, init=init, after=after), count)
    for missing in ([], ["skipped"], ["norm", "skipped"], ["step"], ["loss"], ["lr", "scale"]):
        report = diagnose(write_csv(tmp_path / "log.csv", without(rows, *missing)))
        assert report.ok, (missing, report.findings)
        assert "Nothing found." in str(report)
        assert "sawtooth" in str(report)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("fault", "init", "each", "each_10th"),
    [
        ("data", 2.0**14, "forward-overflow", "forward-overflow"),
        ("nan", 2.0**14, "loss-not-finite", "loss-not-finite"),
        ("backward", 2.0**8, "stale-gradients", "stale-gradients"),
        ("no zero_grad", 2.0**14, "scale-sinks", "scale-sinks"),
        ("fixed", 2.0**14, "scale-stuck", "scale-stuck"),
        ("scaled norm", 2.0**14, "norm-follows-scale", None),
        ("clip scaled", 2.0**8, "norm-at-limit", "norm-at-limit"),
        ("grows", 2.0**14, "scale-grows", "skips-too-many"),
        ("scheduler", 2.0**14, "scheduler-on-skips", None),
        ("restart", 2.0**8, "scale-restarted", None),
        ("epochs", 2.0**20, "scale-restarted", None),
        ("underflow", 1.0, "loss-flat", "loss-flat"),
    ],
)
def test_each_fault(tmp_path, fault, init, seed, each, each_10th):
    rows = rows_of(fault, seed=seed, init=init)
    assert ids(write_csv(tmp_path / "log.csv", rows)) == [each]
    found = ids(write_csv(tmp_path / "log.csv", every(rows, 10)))
    assert found == [each_10th] if each_10th else set(found) <= {each, "skips-too-many"}


@pytest.mark.parametrize("letter", sorted(lesson.TRUTH))
def test_the_logs_of_lesson_07(tmp_path, letter):
    right = {
        "w": [],
        "q": ["stale-gradients"],
        "p": ["norm-follows-scale"],
        "u": ["forward-overflow"],
        "s": ["scheduler-on-skips"],
        "t": ["scale-restarted"],
    }
    rows = [entry._asdict() for entry in lesson.log_of(letter)]
    assert ids(write_csv(tmp_path / "log.csv", rows)) == right[lesson.TRUTH[letter]]


def test_the_numbers_of_a_fall_are_those_of_the_run(tmp_path):
    rows = rows_of("data", init=2.0**8)
    report = diagnose(write_csv(tmp_path / "log.csv", rows))
    (finding,) = report.findings
    before = in_words(rows[49]["scale"])
    assert f"the scale falls from {before} at step 50 (line 51)" in finding.evidence[0]
    assert "71 of the 71 rows" in finding.evidence[1] or "NaN from step 50" in finding.sentence
    assert "find_overflow" in finding.todo
    assert finding.sure == "probable"


def test_a_scale_of_zero_and_the_loss_after_it(tmp_path):
    rows = rows_of("data", init=2.0**-100, steps=110)
    rows = [row for row in rows if row["step"] >= 45]
    assert rows[-1]["scale"] == 0, "FP32 has nothing below 2^-149"
    found = ids(write_csv(tmp_path / "log.csv", rows))
    assert found[0] == "forward-overflow"
    last = [row for row in rows if row["scale"] == 0]
    assert ids(write_csv(tmp_path / "log.csv", without(last, "loss", "norm", "skipped"))) == ["scale-zero"]


def test_what_the_log_cannot_show_is_said(tmp_path):
    rows = rows_of(init=2.0**8)
    said = " ".join(diagnose(write_csv(tmp_path / "a.csv", every(rows, 10))).runs[0].unknown)
    assert "every 10th step" in said
    assert "without" not in said
    short = without(rows[:20], "lr", "skipped", "step", "loss")
    said = " ".join(diagnose(write_csv(tmp_path / "b.csv", short)).runs[0].unknown)
    for part in (
        "without the loss",
        "without the learning rate",
        "without a step",
        "in 19 steps",
        "true one",
    ):
        assert part in said, part


def test_without_steps_a_restart_is_only_possible(tmp_path):
    rows = rows_of("restart", init=2.0**8)
    assert [f.sure for f in diagnose(write_csv(tmp_path / "log.csv", rows)).findings] == ["probable"]
    report = diagnose(write_csv(tmp_path / "log.csv", without(rows, "step")))
    assert [(f.id, f.sure) for f in report.findings] == [("scale-restarted", "possible")]


def test_a_long_constant_scale(tmp_path):
    rows = [{"step": step, "loss": 3 - step / 5000, "scale": 65536.0} for step in range(0, 5000, 50)]
    assert ids(write_csv(tmp_path / "log.csv", rows)) == ["scale-constant"]
    assert ids(write_csv(tmp_path / "log.csv", rows[:70])) == []
    assert ids(write_csv(tmp_path / "log.csv", [{**row, "scale": 1.0} for row in rows])) == []


def test_many_skips_that_growth_does_not_explain(tmp_path):
    rows = rows_of(init=2.0**8)
    skipped = [{**row, "skipped": row["step"] % 9 == 8} for row in without(rows, "norm", "lr")]
    assert ids(write_csv(tmp_path / "log.csv", skipped)) == ["skips-too-many"]


@pytest.mark.parametrize("fault", ["data", "scaled norm"])
def test_each_kind_of_file_says_the_same(tmp_path, fault):
    rows = rows_of(fault)
    expected = ids(write_csv(tmp_path / "log.csv", rows))
    assert expected
    assert ids(write_csv(tmp_path / "log.tsv", rows, "\t")) == expected
    assert ids(write_csv(tmp_path / "log.txt", rows, ";")) == expected
    assert ids(write_jsonl(tmp_path / "log.jsonl", rows)) == expected
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    assert ids(tmp_path / "log.csv.gz") == expected
    (tmp_path / "wide.csv").write_text((tmp_path / "log.csv").read_text(), encoding="utf-16")
    assert ids(tmp_path / "wide.csv") == expected
    (tmp_path / "list.json").write_text(json.dumps(rows))
    assert ids(tmp_path / "list.json") == expected
    state = {"epoch": 1, "log_history": [*rows, {"eval_loss": 1.0, "step": 120}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert ids(tmp_path / "trainer_state.json") == expected
    printed = [{"loss": row["loss"], "grad_norm": row["norm"], "amp/scale": row["scale"]} for row in rows]
    lines = [f" 1%|   | {n}/120 [00:01<00:02] {row}\n" for n, row in enumerate(printed)]
    (tmp_path / "out.txt").write_text("Loading\n" + "\n".join(lines) + "{'train_runtime': 3.1}\n")
    assert ids(tmp_path / "out.txt") == expected


def test_lightning_with_rows_that_fill_each_other(tmp_path):
    rows = []
    for row in rows_of("scheduler"):
        at = {"epoch": 0, "step": row["step"]}
        rows += [
            {**at, "lr-SGD": row["lr"]},
            {**at, "train_loss_step": row["loss"], "amp_scale": row["scale"]},
        ]
        rows += [{**at, "val_loss": 1.0}] if row["step"] % 30 == 0 else []
    names = ["epoch", "step", "lr-SGD", "train_loss_step", "amp_scale", "val_loss"]
    path = write_csv(tmp_path / "metrics.csv", [{name: row.get(name, "") for name in names} for row in rows])
    report = diagnose(path)
    assert [finding.id for finding in report.findings] == ["scheduler-on-skips"]
    assert report.columns == {
        "step": "step",
        "loss": "train_loss_step",
        "scale": "amp_scale",
        "lr": "lr-SGD",
    }
    assert report.runs[0].rows == 120


def test_an_export_of_wandb(tmp_path):
    rows = []
    for row in rows_of("data"):
        cells = {"Step": row["step"]}
        for name in ("loss", "scale"):
            cells |= {f"cool-sun-1 - train/{name}{end}": row[name] for end in ("", "__MIN", "__MAX")}
        rows.append(cells)
    assert ids(write_csv(tmp_path / "wandb.csv", rows)) == ["forward-overflow"]


def test_a_resume_two_runs_and_disorder(tmp_path):
    rows = rows_of(init=2.0**8)
    again = [*rows[:90], *rows[60:]]
    report = diagnose(write_csv(tmp_path / "log.csv", again))
    assert report.ok
    assert [each.rows for each in report.runs] == [120]
    assert "resumed once;" in report.runs[0].notes[0]

    report = diagnose(write_csv(tmp_path / "log.csv", [*rows, *rows_of("data")]))
    assert [[f.id for f in each.findings] for each in report.runs] == [[], ["forward-overflow"]]
    named = [{"run": "b", **row} for row in rows] + [{"run": "a", **row} for row in rows_of("data")]
    report = diagnose(write_csv(tmp_path / "log.csv", named))
    assert [(each.name, each.rows, len(each.findings)) for each in report.runs] == [
        ("run b", 120, 0),
        ("run a", 120, 1),
    ]

    mixed = [rows[i ^ 1] for i in range(len(rows))]
    report = diagnose(write_csv(tmp_path / "log.csv", mixed))
    assert report.ok
    assert "sorted by step" in report.runs[0].notes[0]


def test_steps_that_begin_again_with_each_epoch(tmp_path):
    rows = [
        {**row, "step": (row["step"] - 1) % 30, "epoch": (row["step"] - 1) // 30}
        for row in rows_of("epochs", init=2.0**20)
    ]
    report = diagnose(write_csv(tmp_path / "log.csv", rows))
    assert [finding.id for finding in report.findings] == ["scale-restarted"]
    assert (report.runs[0].rows, report.runs[0].last_step) == (120, 119)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1e-5", 1e-5),
        ("65,536.0", 65536.0),
        ("1,234,567", 1234567.0),
        ("0,5", 0.5),
        (" -.5 ", -0.5),
        ("tensor(1.25, device='cuda:0')", 1.25),
        ("tensor([2.])", 2.0),
        ("True", 1.0),
        (False, 0.0),
        (10**400, float("inf")),
        ("Infinity", float("inf")),
        ("-inf", float("-inf")),
        ("", None),
        ("None", None),
        (None, None),
        ("0x10", None),
        ("1_000", None),
        ([1], None),
    ],
)
def test_numbers(cell, value):
    assert number(cell) == value


def test_nan_is_a_number():
    assert in_words(number("nan")) == in_words(number("NaN")) == "NaN"


GOOD = "step,loss,scale\n1,2.5,1024\n2,2.4,1024\n"


@pytest.mark.parametrize(
    ("content", "columns", "said"),
    [
        (b"", {}, "is empty"),
        (b"\n \n", {}, "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", {}, "is binary"),
        (bytes(range(128, 256)) * 9, {}, "is binary"),
        (b"\x1f\x8b\x08\0\0", {}, "damaged gzip"),
        (b"# nothing\n", {}, "comments only"),
        (b"step,loss\n", {}, "no row below it"),
        (b"1,2.5,1024\n2,2.4,1024\n", {}, "has no header"),
        (b"loss,loss\n1,2\n", {}, "two columns called 'loss'"),
        (b"name,place\na,b\n", {}, "no column with numbers"),
        (b"a,b\n1,2\n", {}, "name them with --loss, --scale and --norm"),
        (b"train/loss,loss_train\n1,2\n", {}, "2 columns could be the loss: train/loss, loss_train"),
        (GOOD.encode(), {"loss": "los"}, "no column 'los' for --loss; did you mean loss"),
        (GOOD.encode(), {"norm": "xyz"}, "there are step, loss, scale"),
        (b"step,loss,why\n1,2,a\n", {"norm": "why"}, "has no numbers, but 'a'"),
        (b"step,loss,why\n1,2,\n", {"norm": "why"}, "is empty; numbers are in step, loss"),
        (b"Loss,LOSS\n1,2\n", {"loss": "loss"}, "fits Loss, LOSS"),
        (b"[1, 2]", {}, "not a list of records"),
        (b"step,loss\n1,\n2,\n", {"loss": "step"}, None),
    ],
)
def test_bad_input_is_said_in_one_sentence(tmp_path, content, columns, said):
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    if said is None:
        assert diagnose(path, **columns).ok
        return
    with pytest.raises(LogError) as error:
        diagnose(path, **columns)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_and_a_folder(tmp_path):
    with pytest.raises(LogError, match="there is no file"):
        diagnose(tmp_path / "log.csv")
    (tmp_path / "metrics.csv").write_text(GOOD)
    with pytest.raises(LogError, match=r"is a folder; name a file in it, such as metrics\.csv"):
        diagnose(tmp_path)


def test_ragged_rows_and_a_header_in_the_middle(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(GOOD + "step,loss,scale\n3,2.3,1024\n4,2.2")
    report = diagnose(path)
    assert report.runs[0].rows == 4
    assert "1 row without exactly" in report.notes[0]


def test_json_holds_all_and_no_nan(tmp_path):
    report = diagnose(write_csv(tmp_path / "log.csv", rows_of("data")))
    data = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert data["ok"] is False
    assert data["columns"]["norm"] == "norm"
    assert set(data["runs"][0]["findings"][0]) == {"id", "sure", "sentence", "evidence", "todo"}


def clipped_to_nothing(size=0.4, falls=0.0, scale=2.0**14):
    """Rows of a run whose scale does not move, with norms of `size` times the scale."""
    waves = [1 + 0.1 * math.sin(7 * i) for i in range(100)]
    return [
        {"step": i, "loss": 2.3 * wave - falls * i, "scale": scale, "norm": size * scale * wave}
        for i, wave in enumerate(waves)
    ]


def test_a_scaled_norm_is_suspected_where_the_scale_never_moves(tmp_path):
    report = diagnose(write_csv(tmp_path / "log.csv", clipped_to_nothing()))
    assert "scale 2^14 in all rows" in str(report)
    (found,) = report.findings
    assert (found.id, found.sure) == ("norm-looks-scaled", "possible")
    norm, true = (float(each) for each in re.findall(r" is (\d[\d.]*)", found.sentence))
    assert norm == pytest.approx(0.4 * 2**14, rel=0.05)
    assert true == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize(
    "rows",
    [
        clipped_to_nothing(falls=0.01),  # it learns
        clipped_to_nothing(size=2.0**-14),  # norms of about 1
        clipped_to_nothing(size=1e4),  # divided by the scale they are no usual norms either
        clipped_to_nothing(scale=8.0, size=1000.0),  # of so small a scale nothing is large
    ],
)
def test_other_norms_are_not_taken_for_scaled_ones(tmp_path, rows):
    assert "norm-looks-scaled" not in ids(write_csv(tmp_path / "log.csv", rows))


@pytest.mark.parametrize("after", [False, True])
def test_one_nan_is_one_skipped_step_whenever_the_scale_was_logged(tmp_path, after):
    rows = [
        {
            "step": i,
            "loss": math.nan if i == 17 else 1.3 - 0.01 * i,
            "scale": 2.0 ** (15 if i > 17 - after else 16),
        }
        for i in range(30)
    ]
    report = diagnose(write_csv(tmp_path / "log.csv", rows))
    assert [each.id for each in report.findings] == ["loss-not-finite"]
    assert "no step just before it was skipped" in str(report)
    assert "1 of 30 rows" in str(report)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_the_batch_to_run_again_is_the_first_that_was_skipped(tmp_path, after, norm):
    """Gradients overflow from step 50 on, whatever the scale."""
    scales = [2.0 ** (16 - max(i - 50 + after, 0)) for i in range(80)]
    rows = [
        {"step": i, "loss": 2.0 - 0.01 * i, "scale": scale}
        | ({"norm": math.inf if i >= 50 else 0.5} if norm else {})
        for i, scale in enumerate(scales)
    ]
    report = diagnose(write_csv(tmp_path / "log.csv", rows))
    todo = " ".join(each.todo for each in report.findings)
    if norm:
        assert "the batch of step 50 (line 52)" in todo
        assert "or of the next step" not in todo
    else:
        assert f"the batch of step {49 if after else 50}" in todo
        assert "or of the next step if scales were logged after `update()`" in todo
