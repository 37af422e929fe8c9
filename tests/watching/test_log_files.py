"""Log files in unusual shapes, and the words with which they are reported."""

import json
import math

import pytest

from amp_lab.watching.logs.diagnosing import diagnose
from amp_lab.watching.logs.errors import LogError
from tests.watching.logged_runs import write_csv

STEPS = range(1, 31)


def plain(text):
    return " ".join(str(text).split())


def report_of(tmp_path, rows):
    return diagnose(write_csv(tmp_path / "log.csv", rows))


def test_a_document_of_lists(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"loss": [2.5, 2.4, 2.3], "scale": [65536.0, 65536.0]}))
    report = diagnose(path)
    assert report.columns == {"loss": "loss", "scale": "scale"}
    assert "3 rows, steps 1 to 3; loss 2.5 → 2.3; scale 2^16 in all rows" in plain(report)


def test_one_record_of_lists_and_nested_ones(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "train": {"loss": [2.5]}}\nhalf of a {record\n{not: one}\n{"step": 2, "loss": 2}\n'
    )
    report = diagnose(path, loss="train/loss")
    assert "loss 2.5 → 2.5" in plain(report)
    assert "Note: 2 lines with a brace but no whole record left out." in plain(report)


def test_what_is_not_csv_is_named_with_its_line(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(f"step,loss\n1,2.5\n2,{'2' * 200_000}\n")
    with pytest.raises(LogError, match=r"line 3, is not CSV"):
        diagnose(path)


def test_one_row(tmp_path):
    assert "1 row, step 7; loss 2.5 → 2.5." in plain(report_of(tmp_path, [{"step": 7, "loss": 2.5}]))


def test_numbers_only_in_rows_without_a_step(tmp_path):
    with pytest.raises(LogError, match=r"no row of .* has a number in the columns step, loss"):
        report_of(tmp_path, [{"step": 1, "loss": ""}, {"step": "", "loss": 2.5}])


def test_the_first_of_several_learning_rates(tmp_path):
    rows = [{"step": i, "loss": 2 - i / 100, "lr_0": 0.1, "lr_1": 0.2} for i in STEPS]
    assert report_of(tmp_path, rows).columns["lr"] == "lr_0"


def test_a_column_that_counts_all_skips_so_far(tmp_path):
    counts = [{"step": i, "loss": 2 - i / 100, "skipped": (i > 3) + (i > 9)} for i in STEPS]
    assert "2 of 30 rows show a skipped step" in plain(report_of(tmp_path, counts))


@pytest.mark.parametrize(
    ("broken", "words"), [(True, "The norm was not finite before"), (False, "still finite")]
)
def test_a_loss_that_stays_nan_after_a_norm(tmp_path, broken, words):
    rows = [
        {
            "step": i,
            "loss": 2.5 if i < 20 else math.nan,
            "norm": math.inf if broken and i == 19 else 1 + i % 7,
        }
        for i in STEPS
    ]
    (finding,) = report_of(tmp_path, rows).findings
    assert finding.id == "loss-not-finite"
    assert words.lower() in " ".join(finding.evidence).lower()
    assert ("which a GradScaler would have skipped" in finding.sentence) is broken


def test_a_loss_that_stays_nan_without_a_norm(tmp_path):
    rows = [{"step": i, "loss": 2.5 if i < 20 else math.nan} for i in STEPS]
    (finding,) = report_of(tmp_path, rows).findings
    assert finding.todo.endswith("Then run `amp_lab.find_overflow` on the batch of step 20 (line 21), with weights "
                                 "from before it.")  # fmt: skip


def test_a_loss_that_is_nan_once(tmp_path):
    rows = [{"step": i, "loss": math.nan if i == 20 else 2.5, "scale": 1024.0} for i in STEPS]
    (finding,) = report_of(tmp_path, rows).findings
    assert (
        finding.todo == "No loss scale cures a loss that is not finite: "
        "run `amp_lab.find_overflow` on the batch of step 20 (line 21)."
    )
