"""nbval on the whole course: executed lessons repeat their outputs, blanks fail at their exercises only."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amp_lab.course.pages import source

pytestmark = [pytest.mark.kernel, pytest.mark.notebooks]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PASSED, FAILED = "passed", "failed"


def notebooks(folder):
    found = sorted((ROOT / folder).glob("*.ipynb"))
    assert found, f"no notebook in {folder}/; run `make build`"
    return found


def nbval(mode, paths, report):
    """Run nbval in one process over many notebooks; returns {(notebook, cell id): what came of the cell}."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-p", "tests.notebooks.nbval_report", f"--cell-report={report}"),
        *(
            mode,
            "--nbval-current-env",
            "--nbval-cell-timeout=120",
            f"--nbval-sanitize-with={HERE / 'sanitize.cfg'}",
        ),
        *map(str, paths),
    ]
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Waiting threads that do not spin: with another test on the same cores, spinning ones take 20 times as long.
    environment = {
        "OMP_WAIT_POLICY": "passive",
        **os.environ,
        "PYTHONPATH": python_path,
        "PYTEST_ADDOPTS": "",
    }
    limit_s = 60 + 120 * len(paths)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    records = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    cells = {(record["notebook"], record["cell"]): record for record in records}
    assert list(cells) == [(path.name, cell) for path in paths for cell in code_cells(path)], done.stdout[
        -3000:
    ]
    return cells


def code_cells(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell["id"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def failures(cells):
    """Return the cells that did not pass, with nbval's words, in a form that pytest prints readably."""
    return {key: plain(record) for key, record in cells.items() if record["outcome"] != PASSED}


def plain(record):
    return re.sub(r"\x1b\[[0-9;]*m", "", f"{record['error']}\n{record['traceback']}")


@pytest.fixture(scope="module")
def files_before():
    return tracked_files()


def tracked_files():
    """Return every file in the notebooks' folders, but what lessons may write: their git-ignored scratch/."""
    files = (
        path for folder in ("notebooks", "solutions") for path in (ROOT / folder).rglob("*") if path.is_file()
    )
    return {path: path.stat().st_mtime_ns for path in files if "scratch" not in path.parts}


@pytest.fixture(scope="module")
def blanks(files_before, tmp_path_factory):
    return nbval("--nbval-lax", notebooks("notebooks"), tmp_path_factory.mktemp("lax") / "cells.jsonl")


@pytest.fixture(scope="module")
def solutions(files_before, tmp_path_factory):
    return nbval("--nbval", notebooks("solutions"), tmp_path_factory.mktemp("strict") / "cells.jsonl")


def test_the_report_names_the_cells_that_failed_and_why(tmp_path):
    """On three small cells: one repeats its output, one does not, one raises."""
    cells = [
        {
            "id": name,
            "cell_type": "code",
            "execution_count": 1,
            "metadata": {},
            "source": code,
            "outputs": [output],
        }
        for name, code in {"same": "print(1)", "other": "print(2)", "error": "1 / 0"}.items()
        for output in [{"output_type": "stream", "name": "stdout", "text": "1\n"}]
    ]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    strict = failures(nbval("--nbval", [path], tmp_path / "strict.jsonl"))
    assert list(strict) == [("small.ipynb", "other"), ("small.ipynb", "error")]
    assert "outputs differ" in strict["small.ipynb", "other"]
    assert "ZeroDivisionError" in strict["small.ipynb", "error"]


def test_executed_lessons_repeat_every_output(solutions):
    assert failures(solutions) == {}


def test_blanks_fail_at_their_check_cells_and_nowhere_else(blanks):
    checks = [
        (path.name, cell)
        for path in notebooks("notebooks")
        for cell in source.check_cells(json.loads(path.read_text(encoding="utf-8")))
    ]
    failed = failures(blanks)
    assert list(failed) == checks, failed


def test_a_blank_check_says_that_the_exercise_is_not_attempted(blanks):
    failed = failures(blanks)
    assert failed
    assert {key: text for key, text in failed.items() if "not attempted" not in text} == {}


def test_running_the_lessons_changes_no_file(blanks, solutions, files_before):
    assert tracked_files() == files_before
