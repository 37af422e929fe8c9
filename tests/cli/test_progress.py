"""`amp-lab progress`: what it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amp_lab.cli.progress import row, table
from amp_lab.course import catalog
from amp_lab.course.learner import progress, workspace
from tests.cli.running import run
from tests.cli.two_lessons import LESSONS, publish, save, two_lessons
from tests.course.pages.sample_pages import NEW, OLD, edited

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path, monkeypatch):
    return two_lessons(tmp_path, monkeypatch)


@pytest.mark.parametrize("has_copies", [False, True])
def test_nothing_is_done_yet(root, has_copies):
    if has_copies:
        workspace.copy_blanks(root)
    done = run("progress")
    assert done.output == (
        "0 of 3 exercises done, 2 h 10 min left\n\n"
        "01  Number formats                  not started      40 min\n"
        "02  Casts — and what they cost you  not started  1 h 30 min\n\n"
        "Next: lesson 01, Number formats\n"
        "  amp-lab lab 01\n"
    )
    assert done.exit_code == 0
    assert (root / "work").exists() == has_copies, "looking makes nothing"


def test_under_way(root):
    workspace.copy_blanks(root)
    progress.add(root, "2.1")
    progress.add(root, "1.2")
    progress.add(root, "77.7")  # of another version of the course
    assert run("progress").output == (
        "2 of 3 exercises done, 30 min left\n\n"
        "01  Number formats                  1 of 2 done  30 min left\n"
        "02  Casts — and what they cost you  done\n\n"
        "Next: exercise 1.1, Title of 1.1\n"
        "  amp-lab lab 01\n"
    )


def test_a_page_that_was_worked_in_is_under_way(root):
    workspace.copy_blanks(root)
    save(root, edited(OLD, "t1", "my notes"), "02_casts")
    output = run("progress").output
    assert re.search("^02 .* 0 of 1 done  1 h 30 min left$", output, re.MULTILINE)
    assert output.endswith("Next: exercise 2.1, Title of 2.1\n  amp-lab lab 02\n")


def test_all_done(root):
    for name in ("1.1", "1.2", "2.1"):
        progress.add(root, name)
    output = run("progress").output
    assert output.startswith("3 of 3 exercises done, 0 min left\n")
    assert output.endswith("All done. `amp-lab check` runs your pages once more from top to bottom.\n")


def test_open_again_after_a_reset(root):
    progress.add(root, "1.1")
    assert "1 of 3" in run("progress").output
    run("reset", "1.1", "--yes")
    assert "0 of 3" in run("progress").output


def test_new_text_is_mentioned(root):
    workspace.copy_blanks(root)
    publish(root, NEW)
    assert run("progress").output.endswith("The course has new text: amp-lab update 01\n")


@pytest.mark.parametrize("damage", [b"{", b"\xff"])
def test_with_a_damaged_copy_and_a_damaged_record(root, damage):
    workspace.copy_blanks(root)
    save(root, OLD)
    (root / "work" / "01_formats.ipynb").write_bytes(damage)
    (root / "work" / ".amp-lab" / "progress.jsonl").write_bytes(damage)
    done = run("progress")
    assert done.exit_code == 0
    assert "01  Number formats                  0 of 2 done  40 min left" in done.output


@pytest.mark.parametrize("columns", [200, 76, 60, 56, 40])
def test_it_fits_the_terminal(columns):
    lines = table([row(lesson, {"1.1"}, True) for lesson in LESSONS], columns)
    assert max(map(len, lines)) <= columns
    assert "left" in lines[-1]


def test_a_narrow_terminal():
    rows = [row(LESSONS[0], {"1.1", "1.2"}, True), row(LESSONS[1], set(), True)]
    assert table(rows, 56) == [
        "01  Number formats          done",
        "02  Casts — and what th...  0 of 1 done  1 h 30 min left",
    ]
    assert table(rows, 40) == [
        "01  Number formats",
        "    done",
        "02  Casts — and what they cost you",
        "    0 of 1 done, 1 h 30 min left",
    ]


def test_a_lesson_without_exercises_is_never_done():
    lesson = catalog.Lesson("09_end", "End", 5, "easy", "-", ())
    assert row(lesson, set(), False) == (lesson, "not started", 5, ())
    assert row(lesson, set(), True).minutes_left == 5


def test_piped_and_without_our_letters(root):
    done = subprocess.run(
        [sys.executable, "-m", "amp_lab", "progress"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "FORCE_COLOR": ""},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout
    assert all(byte == 10 or 32 <= byte < 127 for byte in done.stdout)


@pytest.mark.parametrize("damage", ["{", "folder", "dangling link"])
def test_a_damaged_page_is_named(root, damage):
    workspace.copy_blanks(root)
    path = root / "work" / "01_formats.ipynb"
    path.unlink()
    if damage == "{":
        path.write_text("{")
    else:
        path.mkdir() if damage == "folder" else path.symlink_to("nowhere")
    lines = run("progress").output.splitlines()
    (told,) = [line for line in lines if line.startswith("Lesson 01: ")]
    assert str(path) in told
    assert ("amp-lab reset 01" if damage == "{" else "rename or remove it") in told


def put_a_file(path):
    shutil.rmtree(path)
    path.write_text("mine")


def put_pipes(state):
    for name in ("origin.json", "progress.jsonl"):
        (state / name).unlink(missing_ok=True)
        os.mkfifo(state / name)


@pytest.mark.parametrize("command", [["progress"], ["update"]])
@pytest.mark.parametrize(("name", "break_it"), [(".amp-lab", put_a_file), (".amp-lab", put_pipes)])
def test_with_a_record_that_is_none(root, command, name, break_it):
    workspace.copy_blanks(root)
    break_it(root / "work" / name)
    assert run(*command).exit_code == 0


def test_what_is_locked_reads_as_nothing(root, monkeypatch):
    workspace.copy_blanks(root)
    real = os.open

    def locked(path, *arguments, **more):
        if ".amp-lab" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", locked)
    assert run("progress").output.startswith("0 of 3 exercises done")
    done = run("reset", "01", "--yes")
    assert re.fullmatch("Error: cannot work in .*: Permission denied; make .*\n", done.output)


def test_a_file_in_place_of_the_workspace(root):
    (root / "work").write_text("mine")
    output = run("progress").output
    assert output.startswith("0 of 3 exercises done")
    assert "Not all can be seen here: " in output
    assert "rename the file" in output
    done = run("update")
    assert done.exit_code == 1
    assert "rename the file" in done.output
