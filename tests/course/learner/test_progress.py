"""The record of what a learner has done: when it is written, when not, and what survives in it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from amp_lab.course.judging import exercise
from amp_lab.course.learner import progress
from tests.course.probe import DOUBLE, check_double

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with a workspace, in which the learner's kernel works; no test run, no CI."""
    for name in ("notebooks", "solutions", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setenv("AMP_LAB_COURSE", str(tmp_path))
    for name in ("PYTEST_VERSION", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def log(root):
    return root / "work" / ".amp-lab" / "progress.jsonl"


def lines(root):
    return log(root).read_text().splitlines() if log(root).exists() else []


def test_a_success_is_one_line_with_time_and_zone(root):
    progress.record("1.1")
    (line,) = lines(root)
    entry = json.loads(line)
    assert entry.keys() == {"time", "exercise", "event"}
    assert (entry["exercise"], entry["event"]) == ("1.1", "correct")
    when = datetime.fromisoformat(entry["time"])
    assert when.utcoffset() is not None
    assert abs(datetime.now(UTC) - when) < timedelta(minutes=1)
    assert progress.done(root) == {"1.1": when}


def test_a_second_success_adds_nothing_and_the_first_time_counts(root):
    log(root).parent.mkdir()
    line = '{"time": "2027-01-31T18:05:0%d+01:00", "exercise": "1.1", "event": "correct"}\n'
    log(root).write_text(line % 9 + line % 5)  # as two kernels may write them
    for _ in range(3):
        progress.record("1.1")
    assert len(lines(root)) == 2
    assert progress.done(root)["1.1"] == datetime(2027, 1, 31, 17, 5, 9, tzinfo=UTC)


def test_a_reset_opens_the_exercise_and_the_past_stays_in_the_file(root):
    progress.record("1.1")
    progress.record("1.2")
    before = log(root).read_bytes()
    assert progress.add(root, "1.1", "reset")
    assert progress.add(root, "1.1", "reset"), "what is open need not be opened"
    assert progress.done(root).keys() == {"1.2"}
    assert log(root).read_bytes().startswith(before)
    assert len(lines(root)) == 3
    progress.record("1.1")
    assert progress.done(root).keys() == {"1.1", "1.2"}
    assert len(lines(root)) == 4


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"time": "yesterday", "exercise": "1.9", "event": "correct"}',
        b'{"time": 5, "exercise": "1.9", "event": "correct"}',
        b'{"time": "0001-01-01T00:00:00", "exercise": ["1.9"], "event": "correct"}',
        b'{"exercise": "1.9", "event": "correct"}',
        b'{"time": "2027-01-31T18:05:09+01:00", "exercise": ["1.9"], "event": "correct"}',
        b'{"time": "2027-01-31T18:05:09+01:00", "exercise": "1.9", "event": "of another version"}',
    ],
    ids=range(12),
)
def test_a_damaged_line_is_passed_over_and_kept(root, damaged):
    progress.record("1.1")
    with log(root).open("ab") as file:
        file.write(damaged + b"\n")
    progress.record("1.2")
    assert progress.done(root).keys() == {"1.1", "1.2"}
    assert log(root).read_bytes().split(b"\n")[1] == damaged


def test_half_a_line_does_not_damage_the_next(root):
    progress.record("1.1")
    with log(root).open("ab") as file:
        file.write(b'{"time": "2027-01-3')
    progress.record("1.2")
    assert progress.done(root).keys() == {"1.1", "1.2"}


def test_exercises_of_another_version_of_the_course_stay(root):
    progress.record("77.7")
    progress.record("0.1")
    assert progress.done(root).keys() == {"77.7", "0.1"}


# --- where it is written, and where not ---------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["PYTEST_VERSION", "CI"])
def test_no_test_run_records(root, variable, monkeypatch):
    monkeypatch.setenv(variable, "9.0")
    progress.record("1.1")
    assert not log(root).exists()
    progress.add(root, "1.1")  # what `amp-lab check` says
    assert progress.done(root).keys() == {"1.1"}


def test_only_in_the_workspace(root, tmp_path_factory, monkeypatch):
    beside = root / "work-2"
    beside.mkdir()
    for folder in (root, root / "notebooks", beside, tmp_path_factory.mktemp("elsewhere")):
        monkeypatch.chdir(folder)
        progress.record("1.1")
    assert lines(root) == []
    (root / "work" / "deeper").mkdir()
    monkeypatch.chdir(root / "work" / "deeper")
    progress.record("1.1")
    assert len(lines(root)) == 1


def test_a_workspace_behind_a_link(root, tmp_path_factory, monkeypatch):
    """As when work/ lies in a synchronised folder: Jupyter may give the kernel either name."""
    elsewhere = tmp_path_factory.mktemp("synced")
    (root / "work").rmdir()
    (root / "work").symlink_to(elsewhere)
    for name, folder in (("1.1", root / "work"), ("1.2", elsewhere)):
        monkeypatch.chdir(folder)
        progress.record(name)
    assert progress.done(root).keys() == {"1.1", "1.2"}


def test_it_never_raises(root, monkeypatch):
    log(root).mkdir(parents=True)
    progress.record("1.1")
    assert not progress.add(root, "1.1")
    assert progress.done(root) == {}
    for broken in ("getcwd", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, lambda *_: 1 / 0)
            progress.record("1.1")
    monkeypatch.setenv("AMP_LAB_COURSE", "/nowhere")
    progress.record("1.1")


def test_a_full_disk_is_no_success(root, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:9]))
    assert not progress.add(root, "1.1")
    monkeypatch.undo()
    assert progress.add(root, "1.1")
    assert progress.done(root).keys() == {"1.1"}


def test_one_write_that_appends(root, monkeypatch):
    flags, writes = [], []
    real_open, real_write = os.open, os.write
    monkeypatch.setattr(
        os, "open", lambda path, flag, mode=0o777: flags.append(flag) or real_open(path, flag, mode)
    )
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(data) or real_write(file, data))
    progress.record("1.1")
    (flag,), (data,) = [each for each in flags if each & os.O_WRONLY], writes
    assert flag & os.O_APPEND
    assert not flag & os.O_TRUNC
    assert data.endswith(b"\n")


def test_many_kernels_at_once(root):
    script = (
        "import sys; from pathlib import Path; from amp_lab.course.learner import progress\n"
        "for number in range(100): progress.add(Path(sys.argv[1]), f'{sys.argv[2]}.{number}')"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(root), str(each)], cwd=REPOSITORY)
        for each in range(3)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert progress.done(root).keys() == {f"{each}.{number}" for each in range(3) for number in range(100)}
    assert len(lines(root)) == 300


def test_a_line_that_another_kernel_is_writing_is_waited_for(root, monkeypatch):
    progress.add(root, "1.1")
    whole = log(root).read_bytes()
    looks = iter([whole[:-20], whole[:-1], whole])
    monkeypatch.setattr(progress, "_read", lambda root: next(looks, whole))
    assert progress.add(root, "1.2")
    assert len(lines(root)) == 2


# --- a check ------------------------------------------------------------------------------------------------


@pytest.fixture
def graded(monkeypatch):
    monkeypatch.setattr(exercise, "grade", lambda name, answer: exercise.judge(DOUBLE, check_double, answer))


def test_a_check_records_what_is_correct_and_nothing_else(root, graded, monkeypatch):
    order = []
    monkeypatch.setattr(exercise, "tell", lambda verdict: order.append(verdict.outcome))
    for answer in (lambda x: x, lambda x: 1 / 0, lambda x: (_ for _ in ()).throw(NotImplementedError), 5):
        exercise.check("99.1", answer)
    assert lines(root) == []
    exercise.check("99.1", lambda x: x + x)
    assert progress.done(root).keys() == {"99.1"}
    assert order[-1] == "correct"


def test_a_check_succeeds_where_nothing_can_be_recorded(root, graded, capsys):
    log(root).mkdir(parents=True)
    exercise.check("99.1", lambda x: x + x)
    assert "correct" in capsys.readouterr().out


def test_repeated_success_does_not_make_the_file_grow(root):
    for _ in range(1000):
        progress.record("1.1")
    assert len(lines(root)) == 1


def test_pytest_tells_the_kernels_that_nbval_starts():
    """They inherit its environment. If a pytest stops doing so, nbval would record what the course solves itself."""
    assert os.environ["PYTEST_VERSION"] == pytest.__version__


@pytest.mark.kernel
def test_in_a_real_kernel(root):
    """As JupyterLab starts it: in the folder of the page. Under nbval the same page records nothing."""
    from jupyter_client import KernelManager

    page = (
        "import math\n"
        "from amp_lab.course import check\n"
        "check('0.1', lambda shape, dtype: math.prod(shape) * dtype.itemsize)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(root / "work"), env=environment)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        for before, recorded in (
            ("os.environ['PYTEST_VERSION'] = '9'", 0),
            ("del os.environ['PYTEST_VERSION']", 1),
        ):
            reply = client.execute_interactive(
                f"import os; {before}\n{page}", timeout=60, output_hook=lambda _: None, allow_stdin=False
            )
            assert reply["content"]["status"] == "ok", reply["content"]
            assert len(lines(root)) == recorded
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        client.context.destroy()
    assert progress.done(root).keys() == {"0.1"}
