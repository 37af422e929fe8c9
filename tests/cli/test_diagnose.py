"""`amp-lab diagnose` as a command: what it prints, its exit status, what it imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.watching import logged_runs

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def healthy(tmp_path):
    return logged_runs.write_csv(tmp_path / "good.csv", logged_runs.run(init=2.0**8, steps=60))


@pytest.fixture
def faulty(tmp_path):
    rows = logged_runs.run("data", init=2.0**8)
    renamed = [{"i": row["step"], "objective": row["loss"], "k": row["scale"]} for row in rows]
    return logged_runs.write_csv(tmp_path / "bad.csv", renamed)


NAMED = ("--loss", "objective", "--scale", "k", "--step", "i")


def test_a_healthy_log(healthy):
    done = run("diagnose", str(healthy))
    assert done.exit_code == 0
    assert "\nNothing found.\n" in done.output
    assert "Normal is" in done.output


def test_columns_by_name(faulty):
    done = run("diagnose", str(faulty), *NAMED)
    assert done.exit_code == 0
    assert "\nprobable  forward-overflow\n" in done.output
    assert "What this log cannot show:" in done.output
    assert "find_overflow" in done.output
    assert "Normal is" not in done.output


def test_json(faulty):
    done = run("diagnose", str(faulty), *NAMED, "--json")
    data = json.loads(done.output)
    assert [each["id"] for each in data["runs"][0]["findings"]] == ["forward-overflow"]


@pytest.mark.parametrize("width", [50, 90])
def test_lines_fit_the_terminal(faulty, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(faulty.parent)
    lines = run("diagnose", faulty.name, *NAMED).output.splitlines()
    assert width - 15 < max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.csv"], "Error: there is no file nowhere.csv\n"),
        (["bad.csv"], "Error: none of the columns of bad.csv is known"),
        (
            ["bad.csv", "--loss", "objectve"],
            "Error: there is no column 'objectve' for --loss; did you mean objective?",
        ),
        (["."], "Error: . is a folder; name a file in it, such as bad.csv\n"),
    ],
)
def test_what_cannot_be_read_is_status_1(faulty, arguments, said, monkeypatch):
    monkeypatch.chdir(faulty.parent)
    done = run("diagnose", *arguments)
    assert done.exit_code == 1
    assert done.output.startswith(said)
    assert done.output.count("\n") == 1


def test_without_a_file_is_status_2():
    assert run("diagnose").exit_code == 2


def test_pytorch_is_not_imported(faulty):
    script = (
        "import sys; from amp_lab.cli import main\n"
        f"main({['diagnose', str(faulty), *NAMED]}, prog_name='amp-lab', standalone_mode=False)\n"
        "print('imported:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.rpartition("imported:")[2].split())
    assert "amp_lab.watching.logs.diagnosing" in imported
    assert not imported & {"torch", "numpy", "rich"}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_terminal_without_the_letters(faulty, options):
    done = subprocess.run(
        [sys.executable, "-m", "amp_lab", "diagnose", str(faulty), *NAMED, *options],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "forward-overflow" in done.stdout
