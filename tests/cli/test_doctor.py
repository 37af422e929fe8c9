"""`amp-lab doctor` as a command: its words and its exit status."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from amp_lab import cli
from amp_lab.course.learner import workspace
from amp_lab.course.machine import health
from amp_lab.course.pages import cells
from tests.course.machine.one_lesson import SLUG, one_lesson
from tests.course.pages.sample_pages import NEW

REPOSITORY = Path(__file__).parents[2]


def run():
    return CliRunner().invoke(cli.main, ["doctor"], prog_name="amp-lab", catch_exceptions=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    return one_lesson(tmp_path, monkeypatch)


@pytest.fixture
def quick(monkeypatch):
    """No processes: these two questions have tests of their own."""
    for name in ("kernel", "pytorch"):
        monkeypatch.setattr(health, name, lambda name=name: health.Finding("ok", name, "fine"))


def test_a_healthy_course(root, quick):
    done = run()
    assert done.exit_code == 0
    assert done.output.endswith("\nNo problems.\n")
    assert not re.search("^problem", done.output, re.MULTILINE)
    for what in (
        "Python",
        "packages",
        "Jupyter",
        "kernel",
        "pytorch",
        "work/",
        "disk",
        "copies",
        "time limits",
    ):
        assert re.search(f"^ok       {what}:", done.output, re.MULTILINE), what


def test_it_changes_nothing(root, quick):
    def everything():
        return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    (root / "notebooks" / f"{SLUG}.ipynb").write_bytes(cells.dump(NEW))
    before = everything()
    run()
    assert everything() == before


def test_a_problem_has_an_advice_below_it_and_status_1(root, quick):
    (root / "work" / f"{SLUG}.ipynb").write_bytes(b"{")
    done = run()
    assert done.exit_code == 1
    found = re.search(r"^problem  copies:(.*?)^\w", done.output, re.DOTALL | re.MULTILINE)
    said = " ".join(found[1].split())
    assert "01_formats.ipynb as a notebook (no valid JSON" in said
    assert "-> `amp-lab reset 01` starts the lesson over, and keeps this file as a backup" in said
    assert done.output.endswith("\n1 to solve.\n")


def test_with_the_helpers_alone(tmp_path, quick, monkeypatch):
    monkeypatch.delenv("AMP_LAB_COURSE", raising=False)
    monkeypatch.setattr(
        workspace, "__file__", str(tmp_path / "lib/site-packages/amp_lab/course/learner/workspace.py")
    )
    monkeypatch.setattr(metadata, "requires", lambda name: ["click>=8.1", 'ruff>=99; extra == "dev"'])
    done = run()
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "need the course's checkout" in said
    assert "copies" not in said
    assert "2 are there" in said or "1 are there" in said


def test_a_checkout_that_is_not_there(tmp_path, quick, monkeypatch):
    monkeypatch.setenv("AMP_LAB_COURSE", str(tmp_path / "nowhere"))
    monkeypatch.setattr(metadata, "requires", lambda name: ["click>=8.1"])
    done = run()
    assert done.exit_code == 1
    assert " ".join(done.output.split()).startswith(f"problem course: AMP_LAB_COURSE is '{tmp_path}/nowhere'")


def test_lines_fit_the_terminal(root, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (root / "requirements.lock").write_text("click==0.1\n")
    longest = max((line for line in run().output.splitlines() if "/" not in line), key=len)
    assert len(longest) <= 60


def test_without_letters_it_is_said_without_a_traceback(root):
    shutil.copytree(REPOSITORY / "notebooks", root / "notebooks", dirs_exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "amp_lab", "doctor"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert re.search("^note     terminal: this terminal has ascii", done.stdout, re.MULTILINE)
    assert re.search("^ok       PyTorch: ", done.stdout, re.MULTILINE)
    assert done.returncode == 0
