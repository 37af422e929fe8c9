"""`amp-lab progress` and `amp-lab update`: what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from amp_lab import cli
from amp_lab.cli.progress import row, table
from amp_lab.course import catalog, cells, progress, workspace
from tests.course.test_merging import ANSWER, NEW, OLD, code, edited, page, source, sources, stub

REPOSITORY = Path(__file__).parents[1]


def exercise(name, minutes):
    return catalog.Exercise(name, f"Title of {name}", minutes, "f", ("idea", "call", "code"), {}, "because")


LESSONS = (
    catalog.Lesson(
        "01_formats", "Number formats", 40, "easy", "-", (exercise("1.1", 5), exercise("1.2", 10))
    ),
    catalog.Lesson("02_casts", "Casts — and what they cost you", 90, "easy", "-", (exercise("2.1", 5),)),
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "lessons", lambda: LESSONS)
    monkeypatch.setenv("AMP_LAB_COURSE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "solutions").mkdir()
    (tmp_path / "notebooks").mkdir()
    for lesson in LESSONS:
        (tmp_path / "notebooks" / f"{lesson.slug}.ipynb").write_bytes(cells.dump(OLD))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.main, arguments, prog_name="amp-lab", catch_exceptions=False)


def save(root, notebook, slug="01_formats"):
    (root / "work" / f"{slug}.ipynb").write_bytes(cells.dump(notebook))


def publish(root, notebook, slug="01_formats"):
    (root / "notebooks" / f"{slug}.ipynb").write_bytes(cells.dump(notebook))


# --- progress -----------------------------------------------------------------------------------------------


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


# --- update -------------------------------------------------------------------------------------------------


@pytest.fixture
def copies(root):
    workspace.copy_blanks(root)
    save(root, edited(OLD, "stub-1-1-1", ANSWER))
    return root / "work"


def test_nothing_to_update(root, copies):
    done = run("update")
    assert done.output == f"There is nothing to update: your copies in {copies} have the newest text.\n"
    assert done.exit_code == 0
    assert run("update", "01", "1").output == "Lesson 01 has the newest text.\n"


def test_update_says_what_it_did(root, copies):
    save(root, page(code("mine", "1 + 1"), *edited(OLD, "stub-1-1-1", ANSWER)["cells"][1:]))
    new = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="More.")))
    publish(root, new)
    done = run("update")
    (backup,) = (copies / "backups").iterdir()
    assert done.output == (
        f"Lesson 01 (Number formats) has its new text: {copies / '01_formats.ipynb'}\n"
        "  Your answers are in their places: 1.1.\n"
        "  Changed, look at your answer again: 1.1.\n"
        "  Kept: 1 more cell that you wrote or changed.\n"
        "  Back: 1 cell of the course that you had deleted.\n"
        f"  The page as it was is kept in {backup}.\n"
        "If JupyterLab has a page open: File, Reload Notebook from Disk. Had you not saved it? When JupyterLab says "
        "that the file has changed, choose Overwrite, then run the same command again.\n"
    )
    assert done.exit_code == 0
    assert run("update").output.startswith("There is nothing to update")


def test_only_the_lessons_asked_for(root, copies):
    for lesson in LESSONS:
        publish(root, NEW, lesson.slug)
    run("update", "02_casts.ipynb")
    assert run("update").output.startswith("Lesson 01")
    assert ANSWER in sources(cells.parse((copies / "01_formats.ipynb").read_bytes()))


def test_one_that_cannot_be_updated_does_not_stop_the_others(root, copies):
    (copies / "02_casts.ipynb").write_bytes(b"{")
    publish(root, NEW)
    done = run("update", "02", "01")
    assert re.search(r"^Error: cannot read .*02_casts.ipynb as a notebook", done.output, re.MULTILINE)
    assert "Lesson 01 (Number formats) has its new text" in done.output
    assert done.exit_code == 1


def test_a_lost_origin_is_told(root, copies):
    for path in (copies / ".amp-lab").rglob("*.*"):
        if path.is_file():
            path.unlink()
    publish(root, NEW)
    assert (
        "  Nobody knows any more which text this copy began with: all that may be yours was kept."
        in run("update").output
    )
