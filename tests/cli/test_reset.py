"""`amp-lab reset`."""

import re

import pytest

from amp_lab import cli
from amp_lab.course.learner import progress
from tests.cli.running import run
from tests.cli.start_here import PAGE


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("00", "Lesson 00 (Title of 00_start_here)"),
        ("0", "Lesson 00"),
        (PAGE, "Lesson 00"),
        ("0.1", "Exercise 0.1"),
    ],
)
def test_reset_says_where_the_work_is(root, page, name, what):
    before = page.read_bytes()
    done = run("reset", name, "--yes")
    assert done.exit_code == 0
    assert done.output.startswith(what)
    (backup,) = (root / "work" / "backups").iterdir()
    assert f"Your work is kept in {backup}.\n" in done.output
    assert backup.read_bytes() == before
    assert "NotImplementedError" in page.read_text()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_reset_asks(root, page, answer, status, monkeypatch):
    monkeypatch.setattr(cli.asking, "_has_terminal", lambda: True)
    done = run("reset", "0.1", answer=answer)
    assert "press Ctrl+S there first" in done.output
    assert (
        f"Make exercise 0.1 blank again, and keep what is there in {root / 'work' / 'backups'}?"
        in done.output
    )
    assert ("Nothing was changed." in done.output) == (answer in ("n\n", "\n"))
    assert done.exit_code == status
    assert ("SystemExit" in page.read_text()) == bool(status)
    assert (root / "work" / "backups").exists() != bool(status)


def test_reset_without_a_copy(root):
    done = run("reset", "03", "--yes")
    assert (
        done.output
        == f"There was no copy of lesson 03 yet; now there is: {root / 'work' / '03_loops.ipynb'}\n"
    )
    assert done.exit_code == 0


@pytest.mark.parametrize(("name", "left"), [("0.1", {"0.2"}), ("00", set())])
def test_reset_opens_exercises_again_and_says_so(root, page, name, left):
    for solved in ("0.1", "0.2"):
        progress.add(root, solved)
    done = run("reset", name, "--yes")
    opened = "0.1" if left else "0.1, 0.2"
    assert done.output.endswith(f"For `amp-lab progress` open again: {opened}.\n")
    assert progress.done(root).keys() == left
    assert "open again" not in run("reset", name, "--yes").output


def test_reset_of_a_damaged_copy(root, page):
    page.write_text("{")
    done = run("reset", "0.1", "--yes")
    assert done.exit_code == 1
    assert re.fullmatch(r"Error: cannot find one exercise in .*`amp-lab reset 00` .*\n", done.output)
