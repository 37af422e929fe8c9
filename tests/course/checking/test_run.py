"""The files that nbval runs, and what is read of what it tells."""

import os

import pytest

from amp_lab.course.checking import run


def test_hidden_files_of_a_killed_program_are_removed_and_those_in_use_are_not(tmp_path):
    stale = tmp_path / ".amp-lab-check.12345678.00_start.ipynb"
    stale.touch()
    others = [tmp_path / "00_start.ipynb", tmp_path / ".mine.ipynb"]
    for path in others:
        path.touch()
    with run.beside(tmp_path, {"00_start": b"first"}) as mine:
        assert not stale.exists()
        with run.beside(tmp_path, {"00_start": b"second"}) as theirs:
            assert [(tmp_path / name).read_bytes() for name in (*mine, *theirs)] == [b"first", b"second"]
            assert [*mine.values(), *theirs.values()] == ["00_start"] * 2
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run.os, "urandom", lambda count: b"same")
    with (
        pytest.raises(FileExistsError),
        run.beside(tmp_path, {"a": b""}),
        run.beside(tmp_path, {"a": b""}),
    ):
        pytest.fail("two programs share a file")
    assert list(tmp_path.iterdir()) == []


def test_what_nbval_says_is_read_line_by_line():
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as pipe:
        os.write(write, b"one\ntw")
        lines = run._lines(pipe, 5)
        assert next(lines) == b"one"
        os.write(write, b"o\nthree\n")
        assert [next(lines), next(lines)] == [b"two", b"three"]
        os.close(write)
        assert list(lines) == []


def test_who_says_nothing_for_too_long_is_given_up():
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as pipe, pytest.raises(run.Ended, match=r"nothing for 0\.05 s"):
        next(run._lines(pipe, 0.05))
    os.close(write)
