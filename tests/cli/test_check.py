"""`amp-lab check` as a command: its words, its exit status, and the terminals that it meets."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from amp_lab import cli
from amp_lab.course import catalog
from amp_lab.course.checking import lessons as checking
from amp_lab.course.checking.lessons import Step
from amp_lab.course.checking.report import Report, Result
from amp_lab.course.learner import progress
from amp_lab.course.pages import cells

REPOSITORY = Path(__file__).parents[2]


def exercise(name):
    return catalog.Exercise(name, f"Title {name}", 1, "double", ("a", "b", "c"), {}, "Why.")


LESSONS = tuple(
    catalog.Lesson(slug, slug[3:].title(), 1, "easy", "nothing", tuple(map(exercise, names)))
    for slug, names in {"00_start": ("0.1", "0.2"), "03_loops": ("3.1",)}.items()
)
RIGHT, WRONG, OPEN, UNCHECKED, NOT_RUN = (
    Result(LESSONS[0].exercises[0], kind, outcome, why, seconds)
    for kind, outcome, why, seconds in [
        ("right", "correct", "", 0.014),
        ("wrong", "not right yet", "`double(1)` returned 3; the right answer is 2.", 1.26),
        ("open", "not attempted yet", "", 0.0),
        ("not checked", "NOT CHECKED on this machine", "It needs a GPU.", 0.0),
        ("not run", "not run", "the cell `a` did not end", None),
    ]
)


OPEN_2 = Result(LESSONS[0].exercises[1], "open", "not attempted yet")
WRONG_3 = Result(LESSONS[1].exercises[0], "wrong", "not right yet")
COMMAND = "from amp_lab.cli import main\nmain(['check'], prog_name='amp-lab')"


def page(text):
    stub = {"id": "stub-0-1-1", "cell_type": "code", "metadata": {}, "source": text, "outputs": []}
    return cells.dump({"cells": [stub], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A course of two lessons, of which only the first has a copy, as it was copied."""
    monkeypatch.setattr(catalog, "lessons", lambda: LESSONS)
    monkeypatch.setenv("AMP_LAB_COURSE", str(tmp_path))
    monkeypatch.setenv("CI", "")
    for folder in ("notebooks", "solutions", "work"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").touch()
    for lesson in LESSONS:
        (tmp_path / "notebooks" / f"{lesson.slug}.ipynb").write_bytes(page("blank"))
    (tmp_path / "work" / "00_start.ipynb").write_bytes(page("blank"))
    return tmp_path


@pytest.fixture
def found(monkeypatch):
    """What `checking.check` was asked, and what it is to answer."""
    asked = []
    reports = []

    def check(root, lessons, timeout, show):
        asked.append((root, [lesson.slug for lesson in lessons], timeout))
        show(Step(1, 2, "doing"))
        yield from reports

    monkeypatch.setattr(checking, "check", check)
    return asked, reports


def run(*arguments):
    return CliRunner().invoke(cli.main, ["check", *arguments], prog_name="amp-lab", catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9"], "no lesson '9'; there are 00_start, 03_loops"),
        (["00", "03_lops"], "no lesson '03_lops'; did you mean 03_loops?"),
        (["00", "03"], "there is no copy of lesson 03 in .*/work: `amp-lab lab 03` makes one and opens it"),
        (["--timeout", "0", "00"], "0.* is not in the range 1<=x<=86400"),
        (["--timeout", "-1", "00"], "-1.* is not in the range"),
        (["--timeout", "inf", "00"], "inf is not in the range"),
        (["--timeout", "1e300", "00"], "is not in the range"),
        (["--timeout", "nan", "00"], "'--timeout': nan is no number of seconds"),
        (["--timeout", "soon", "00"], "'soon' is not a valid float"),
        (["work/"], "no lesson 'work'"),
    ],
)
def test_what_cannot_be_meant_is_status_2_and_nothing_is_run(root, found, arguments, message):
    done = run(*arguments)
    assert re.search(message, done.output), done.output
    assert done.exit_code == 2
    assert not found[0]


def test_nothing_started_says_how_to_start(root, found):
    done = run()
    assert (
        done.output == f"No lesson was started yet in {root / 'work'}: `amp-lab lab` opens the first one.\n"
    )
    assert done.exit_code == 1
    assert not found[0]


def test_without_a_lesson_those_that_were_started(root, found):
    (root / "work" / "03_loops.ipynb").write_bytes(page("mine"))
    run("--timeout", "7.5")
    (root / "work" / "00_start.ipynb").write_bytes(page("mine"))
    run()
    assert found[0] == [(root, ["03_loops"], 7.5), (root, ["00_start", "03_loops"], 120)]


def test_a_lesson_is_checked_once_by_any_of_its_names(root, found):
    run(
        "00_start.ipynb",
        "0",
        "00",
        "work/00_start.ipynb",
        str(root / "work" / "00_start.ipynb"),
        "./00_start",
    )
    assert found[0] == [(root, ["00_start"], 120)]


@pytest.mark.parametrize(
    ("results", "problem", "status"),
    [
        ([RIGHT], "", 0),
        ([RIGHT, UNCHECKED], "", 3),
        ([UNCHECKED, OPEN], "", 1),
        ([RIGHT, OPEN], "", 1),
        ([RIGHT, WRONG], "", 1),
        ([RIGHT, NOT_RUN], "", 1),
        ([], "no notebook", 1),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_exit_status_tells_of_all_lessons(root, found, results, problem, status, first):
    reports = [Report(LESSONS[0], tuple(results), (), problem), Report(LESSONS[1], (RIGHT,))]
    found[1].extend(reports if first else reports[::-1])
    assert run("00").exit_code == status


def test_what_it_says(root, found):
    _, reports = found
    reports += [
        Report(LESSONS[0], (RIGHT, WRONG, OPEN, UNCHECKED, NOT_RUN), ("the cell `1 / 0` failed",)),
        Report(LESSONS[1], problem="it is no notebook"),
    ]
    assert (
        re.sub(r"\d s\n", "1 s\n", run("00").output)
        == """\
Checking 00 Start. The first result takes some seconds.

00 Start
  ✓ 0.1 Title 0.1: correct (0.01 s)
  ✗ 0.1 Title 0.1: not right yet (1.3 s): `double(1)` returned 3; the right answer is 2.
  ○ 0.1 Title 0.1: not attempted yet (0.00 s)
  – 0.1 Title 0.1: NOT CHECKED on this machine (0.00 s): It needs a GPU.
  ! 0.1 Title 0.1: not run: the cell `a` did not end
  Note: the cell `1 / 0` failed.
  1 of 5 exercises right, 1 s

03 Loops
  ! not run: it is no notebook
`amp-lab hint 0.1` shows a hint.
"""
    )


@pytest.mark.parametrize("ci", ["", "true"])
def test_only_what_is_right_is_remembered_and_nothing_by_ci(root, found, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)
    _, reports = found
    reports += [
        Report(LESSONS[0], (UNCHECKED,)),
        Report(LESSONS[1], (Result(exercise("3.1"), "right", ""),)),
    ]
    run("00")
    assert list(progress.done(root)) == ([] if ci else ["3.1"])


@pytest.mark.parametrize(
    ("results", "hint"),
    [
        ([RIGHT, UNCHECKED, NOT_RUN], ""),
        ([RIGHT, WRONG], "0.1"),
        ([UNCHECKED, OPEN_2, WRONG], "0.2"),
    ],
)
def test_the_last_line_says_how_to_go_on(root, found, results, hint):
    found[1].append(Report(LESSONS[0], tuple(results)))
    last = run("00").output.splitlines()[-1]
    assert last == f"`amp-lab hint {hint}` shows a hint." if hint else "exercises right" in last


def test_what_was_right_once_and_is_not_now_is_said_to_count_still(root, found):
    """Or else `amp-lab progress` seems to contradict it."""
    log = root / "work" / ".amp-lab" / "progress.jsonl"
    log.parent.mkdir()
    days = {"0.1": "2026-11-09", "0.2": "2026-11-29", "3.1": "2026-11-29"}
    log.write_text(
        "".join(
            f'{{"time": "{day}T12:00:00", "exercise": "{name}", "event": "correct"}}\n'
            for name, day in days.items()
        )
    )
    still = "and `amp-lab progress` still counts"

    def notes(*results):
        found[1][:] = [Report(LESSONS[0], results)]
        return re.findall("Note: (.*)", run("00").output)

    assert notes(WRONG) == [f"0.1 was right on 9 Nov 2026, {still} it."]
    assert notes(OPEN_2) == [f"0.2 was right on 29 Nov 2026, {still} it."]
    assert notes(WRONG, OPEN_2, WRONG_3) == [
        f"0.1 was right on 9 Nov 2026, {still} it.",
        f"0.2, 3.1 were right on 29 Nov 2026, {still} them.",
    ]
    assert notes(RIGHT, NOT_RUN, UNCHECKED) == []
    log.unlink()
    assert notes(WRONG, OPEN_2) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("/no/such/file"), "is a link to nothing"),
        (lambda path: path.mkdir(), "is a folder"),
        (os.mkfifo, "is no ordinary file"),
    ],
    ids=["dangling", "folder", "pipe"],
)
@pytest.mark.parametrize("arguments", [[], ["00"]], ids=["all", "named"])
def test_what_is_no_file_is_said_to_be_none_and_not_waited_for(root, make, words, arguments):
    path = root / "work" / "00_start.ipynb"
    path.unlink()
    make(path)
    done = run(*arguments)
    assert re.search(rf"\n  ! not run: .*00_start.ipynb {words}, .*`amp-lab lab 00`\n", done.output), (
        done.output
    )
    assert done.exit_code == 1


@pytest.mark.parametrize("started", [True, False])
def test_a_full_disk_costs_one_line(root, started):
    (root / "work" / "00_start.ipynb").write_bytes(b"{" if started else page("blank"))
    script = f"from tests.cli import test_check\ntest_check.catalog.lessons = lambda: test_check.LESSONS\n{COMMAND}"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert re.fullmatch(r"Error: No space left on device.*\n", done.stderr), done.stderr
    assert done.returncode == 1


def test_without_a_standard_output_it_still_checks(root, found, monkeypatch):
    """As after `amp-lab check >&-`."""
    found[1].append(Report(LESSONS[0], (RIGHT,)))
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as end:
        cli.main(["check", "00"], prog_name="amp-lab")
    assert end.value.code == 0


def test_a_folder_that_cannot_be_written_to(root, monkeypatch):
    def check(*_):
        raise PermissionError(13, "Permission denied", "/work/x")
        yield

    monkeypatch.setattr(checking, "check", check)
    done = run("00")
    assert done.output.endswith(
        f"\nError: cannot check in {root / 'work'}: [Errno 13] Permission denied: '/work/x'\n"
    )
    assert done.exit_code == 1


def test_an_updated_course_is_mentioned(root, found):
    """A copy of an older blank, which was not written in."""
    from amp_lab.course.learner import workspace

    (root / "work" / "00_start.ipynb").unlink()
    workspace.copy_blanks(root)
    (root / "notebooks" / "00_start.ipynb").write_bytes(page("new"))
    assert run("00").output.endswith("The course has a new text of lesson 00: amp-lab update 00\n")
    assert "new text" not in run("03").output


# --- terminals ----------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from amp_lab.cli import check, main
from amp_lab.cli.screen import screen
from tests.cli.test_check import LESSONS, RIGHT, WRONG, Report
sys.stdout.reconfigure(errors="replace")
with screen() as out:
    out.step("00 Start: exercise 0.1", 1, 2)
    check_module = sys.modules["amp_lab.cli.check"]
    check_module._tell(Report(LESSONS[0], (RIGHT, WRONG)), 1, out, {})
"""


def in_terminal(columns, **environment):
    """Run SCRIPT in a terminal of this width, and return what was written to it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")
    }
    written = []

    def read():
        try:
            while data := os.read(ours, 4096):
                written.append(data)
        except OSError:  # the other end was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=REPOSITORY,
        env={**inherited, "TERM": "xterm", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    reader.join(10)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    return b"".join(written)


def test_in_a_terminal_there_is_a_bar_below_the_lines():
    written = in_terminal(60, PYTHONIOENCODING="utf-8").decode()
    assert "1/2" in written
    assert "00 Start: exercise 0.1" in written
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written).replace("\r", "")
    assert (
        "  ✗ 0.1 Title 0.1: not right yet (1.3 s): `double(1)`\n    returned 3; the right answer is 2.\n"
        in text
    )
    assert "\x1b[32m✓\x1b[0m" in written


@pytest.mark.parametrize("columns", [1, 20])
def test_in_a_narrow_terminal_without_our_letters(columns):
    text = in_terminal(columns, PYTHONIOENCODING="ascii").decode("ascii")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")
    assert "  + 0.1 Title 0.1: correct (0.01 s)\n" in text
    assert "  x 0.1 Title 0.1: not right yet (1.3\n    s): `double(1)` returned 3; the\n" in text


def test_a_terminal_that_cannot_move_its_cursor_gets_lines():
    written = in_terminal(60, TERM="dumb", PYTHONIOENCODING="utf-8").decode()
    assert "\x1b" not in written
    assert "1/2" not in written
    assert "  ✓ 0.1 Title 0.1: correct (0.01 s)\r\n" in written


def test_elsewhere_there_are_no_control_characters_whatever_the_environment_wishes():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=REPOSITORY,
        env={**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout
    assert "  ✓ 0.1 Title 0.1: correct (0.01 s)\n" in done.stdout.decode()


def test_nothing_heavy_is_imported_but_where_the_pages_run(root):
    script = (
        "import sys\n"
        "from amp_lab.cli import main\n"
        "try:\n    main(['check'], prog_name='amp-lab')\nexcept SystemExit:\n    pass\n"
        "from amp_lab.course.checking import lessons as checking\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    first, imported = done.stdout.splitlines()
    assert first.startswith("No lesson was started yet")
    assert "amp_lab.course.checking.run" in imported.split()
    heavy = {"torch", "numpy", "nbformat", "nbval", "pytest", "IPython", "jupyter_client", "rich"}
    assert not heavy & set(imported.split())
