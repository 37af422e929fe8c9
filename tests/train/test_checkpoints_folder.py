"""A folder of checkpoints: which are kept, which is gone on from, and whose it is."""

import copy
import errno
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from amp_lab.train.checkpoint import CheckpointError, Checkpoints, load_checkpoint, save_checkpoint
from amp_lab.train.saving import lock
from amp_lab.train.saving.one import write_checkpoint


def steps(checkpoints):
    return [int(re.findall(r"\d+", path.name)[0]) for path in checkpoints.paths]


def filled(folder, many=3, **options):
    checkpoints = Checkpoints(folder, **{"keep": None} | options)
    for step in range(1, many + 1):
        checkpoints.save({"step": step}, step=np.int64(step))
    return checkpoints


def test_the_newest_are_kept(tmp_path):
    assert steps(filled(tmp_path, 6, keep=2)) == [5, 6]
    assert load_checkpoint(tmp_path / "step-0000000006.pt") == {"step": 6}


def test_all_are_kept(tmp_path):
    assert steps(filled(tmp_path, 6, keep=None)) == [1, 2, 3, 4, 5, 6]


def test_names_sort_by_step(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=None)
    many = [9, 100, 10**9, 10**10 - 1]
    for step in many:
        checkpoints.save(0, step=step)
    assert steps(checkpoints) == many
    names = [path.name for path in checkpoints.paths]
    assert names == sorted(names)
    # After ten thousand million steps only `paths` knows.
    checkpoints.save(0, step=3 * 10**10)
    assert checkpoints.newest == tmp_path / "step-30000000000.pt"


@pytest.mark.parametrize(
    ("best", "values", "kept"),
    [
        ("loss", [3, 1, 2, 4, 5], [2, 5]),
        ("min loss", [3, 1, 2, 4, 5], [2, 5]),
        ("max loss", [3, 9, 2, 4, 5], [2, 5]),
        ("loss", [3, 1, 1, 1, 2], [2, 5]),  # the first of equals
        ("loss", [float("nan"), 2, float("nan"), 3, float("-inf")], [2, 5]),
        ("loss", [5, 4, 3, 2, 1], [5]),
        ("loss", [float("nan")] * 3, [3]),
    ],
)
def test_the_best_is_never_removed(tmp_path, best, values, kept):
    checkpoints = Checkpoints(tmp_path, keep=1, best=best)
    for step, value in enumerate(values, 1):
        checkpoints.save({}, step=step, values={"loss": value})
    assert steps(checkpoints) == kept
    if len(kept) == 2:
        assert checkpoints.best == checkpoints.paths[0]
        assert checkpoints.best_value == values[1]


def test_checkpoints_without_values_leave_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, best="max accuracy")
    checkpoints.save({}, step=1, values={"loss": 1.0, "accuracy": 0.5})
    for step in (2, 3, 4):
        checkpoints.save({}, step=step)
    assert steps(checkpoints) == [1, 4]
    # Another object reads it from the files.
    again = Checkpoints(tmp_path, keep=1, best="max accuracy")
    again.load()
    again.save({}, step=5, values={"accuracy": torch.tensor(0.25)})
    assert steps(again) == [1, 5]
    assert (again.best_value, Checkpoints(tmp_path).best, Checkpoints(tmp_path).best_value) == (
        0.5,
        None,
        None,
    )


def test_a_value_that_was_not_measured(tmp_path):
    checkpoints = Checkpoints(tmp_path, best="max accuracy")
    with pytest.raises(
        CheckpointError, match="best='max accuracy': no value of this name is measured, only loss"
    ):
        checkpoints.save({}, step=1, values={"loss": 1.0})
    with pytest.raises(
        CheckpointError, match=r"only nothing\. Give fit a dev_loader and Trainer a metric of"
    ):
        checkpoints.check_values([])
    checkpoints.check_values(["loss", "accuracy"])
    Checkpoints(tmp_path).check_values([])


def test_values_in_a_file_that_are_no_numbers(tmp_path):
    """Whoever sends a checkpoint also sends its last line."""
    for step, values in enumerate(([1], "a", {"loss": "b"}, {"loss": [1]}), 1):
        write_checkpoint(tmp_path / f"step-{step:010d}.pt", {}, {"values": values})
    checkpoints = Checkpoints(tmp_path, best="loss")
    checkpoints.load()
    assert checkpoints.best is None


def test_an_older_one_goes_only_when_the_new_one_is_safe(tmp_path, monkeypatch):
    checkpoints = filled(tmp_path, 1, keep=1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoints.save({}, step=2)
    assert os.listdir(tmp_path) == ["step-0000000001.pt"]
    assert checkpoints.load() == {"step": 1}


def test_other_files_are_left_alone(tmp_path):
    others = {
        "notes.txt",
        "model.pt",
        "step-1.pt",
        "step-0000000001.pt.bak",
        ".a.pt.tmp",
        "step-000000000x.pt",
    }
    for name in others:
        (tmp_path / name).write_text("mine")
    checkpoints = filled(tmp_path, 3, keep=1)
    checkpoints.begin(3)
    assert {path.name for path in tmp_path.iterdir()} == others | {"step-0000000003.pt", ".amp-lab-lock"}


def test_due():
    assert [step for step in range(1, 10) if Checkpoints("a", every=3).due(step)] == [3, 6, 9]
    assert not any(Checkpoints("a").due(step) for step in range(10))


# Going on


def break_file(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def test_the_newest_that_can_be_read(tmp_path):
    filled(tmp_path, 4)
    checkpoints = Checkpoints(tmp_path, keep=2)
    *_, third, fourth = checkpoints.paths
    break_file(fourth)
    third.write_bytes(b"")
    with pytest.warns(UserWarning, match="truncated") as caught:
        assert checkpoints.load() == {"step": 2}
    said = [str(one.message) for one in caught]
    assert len(said) == 2
    assert f"{fourth}: truncated" in said[0]
    assert f"{third}: truncated: it is empty" in said[1]
    assert all("Went on from step-0000000002.pt instead" in one for one in said)
    # The run makes those steps again: what is broken is replaced, and counts for nothing until then.
    checkpoints.begin(2)
    checkpoints.save({"step": 3}, step=3)
    assert steps(checkpoints) == [2, 3, 4]
    checkpoints.save({"step": 4}, step=4)
    assert steps(checkpoints) == [3, 4]
    assert checkpoints.load() == {"step": 4}


def test_nothing_can_be_read(tmp_path):
    checkpoints = filled(tmp_path, 2)
    for path in checkpoints.paths:
        break_file(path)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load()
    assert caught.value.kind == "truncated"
    assert all(str(path) in str(caught.value) for path in checkpoints.paths)


def test_a_newer_version_is_not_passed_over(tmp_path, monkeypatch):
    checkpoints = filled(tmp_path, 2)
    monkeypatch.setattr("amp_lab.train.saving.layout.VERSION", 2)
    checkpoints.save({}, step=3)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"step-0000000003\.pt: written by a newer amp_lab"):
        checkpoints.load()


def test_an_empty_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match=r"no checkpoint is here\. Start without resume") as caught:
            Checkpoints(folder).load()
        assert caught.value.kind == "missing"
        assert Checkpoints(folder).newest is None


def test_one_path(tmp_path):
    checkpoints = filled(tmp_path / "a", 2)
    assert checkpoints.load(checkpoints.paths[0]) == {"step": 1}
    elsewhere = save_checkpoint(tmp_path / "b.pt", "b")
    assert checkpoints.load(elsewhere) == "b"


# Whose folder


def occupied(call, *arguments, **options):
    with pytest.raises(CheckpointError) as caught:
        call(*arguments, **options)
    assert caught.value.kind == "occupied"
    assert "Go on with that run (fit(..., resume=True)), or give this run another folder" in str(caught.value)
    return str(caught.value)


def test_another_runs_checkpoints_are_not_overwritten(tmp_path):
    before = {path: path.read_bytes() for path in filled(tmp_path, 3).paths}
    fresh = Checkpoints(tmp_path, keep=1)
    assert "step-0000000003.pt: another run has saved its checkpoints in this folder" in occupied(
        fresh.begin, 0
    )
    occupied(fresh.save, {}, step=3)
    occupied(fresh.save, {}, step=9)
    assert {path: path.read_bytes() for path in fresh.paths} == before


def test_two_runs_at_the_same_time(tmp_path):
    one, other = Checkpoints(tmp_path, keep=1), Checkpoints(tmp_path, keep=1)
    one.begin(0)
    other.begin(0)
    one.save("one", step=1)
    occupied(other.save, "other", step=1)
    one.save("one", step=2)
    assert one.load() == "one"


# Takes the lock, says so, and keeps it until its input ends.
OTHER = """
import sys
from pathlib import Path
from amp_lab.train.saving.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.take()
print("taken", flush=True)
sys.stdin.read()
"""


def test_another_process_in_the_same_folder(tmp_path):
    """Both could go on from the same checkpoint. The lock goes with its process, kill -9 or not."""
    folder = tmp_path / "new"
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"taken\n"
        with pytest.raises(CheckpointError) as caught:
            Checkpoints(folder).begin(0)
        other.kill()
    assert caught.value.kind == "occupied"
    assert f"{folder}: process {other.pid} on " in str(caught.value)
    assert "is training with the checkpoints in this folder. Wait for it or stop it, or give" in str(
        caught.value
    )
    checkpoints = Checkpoints(folder)
    checkpoints.begin(0)
    # As it can be again when `end` was called: then the other's begin finds it free.
    assert not free(folder)
    checkpoints.end()
    assert free(folder)


def free(folder):
    """Ask from a child: a process can always take its own lock."""
    child = os.fork()
    if not child:
        try:
            Checkpoints(folder).begin(0)
        except CheckpointError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_a_copy_during_a_run(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.begin(0)
    assert copy.deepcopy(checkpoints).folder == checkpoints.folder
    checkpoints.begin(0)
    assert not free(tmp_path)
    checkpoints.end()


def test_the_folder_stays_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints("runs", keep=1)
    checkpoints.save({}, step=1)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    checkpoints.save({}, step=2)
    assert os.listdir(tmp_path / "runs") == ["step-0000000002.pt"]
    assert os.listdir() == []


def test_ctrl_c_when_the_file_is_there(tmp_path, monkeypatch):
    """The next fit of the same run goes on: the file is its own."""
    checkpoints = Checkpoints(tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("amp_lab.train.saving.files._sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save({}, step=1)
    monkeypatch.undo()
    assert steps(checkpoints) == [1]
    checkpoints.begin(1)
    checkpoints.save({}, step=2)


def test_a_folder_that_cannot_be_written_is_no_surprise_after_an_epoch(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("amp_lab.train.saving.lock.os.open", read_only)
    with pytest.raises(CheckpointError, match=r"not saved: Read-only file system\. Give a folder that can"):
        Checkpoints(tmp_path).begin(0)


@pytest.mark.parametrize("step", [-1, 1.0, True, "1"])
def test_steps_that_are_none(tmp_path, step):
    with pytest.raises(ValueError, match="give the number of steps done, a whole number from 0 on"):
        Checkpoints(tmp_path).save({}, step=step)


def test_the_same_run_goes_on(tmp_path):
    checkpoints = filled(tmp_path, 3)
    checkpoints.begin(3)  # fit called again
    checkpoints.save({}, step=3)  # an epoch's end after the same step
    again = Checkpoints(tmp_path)
    again.load()
    again.begin(3)
    again.save({}, step=4)
    assert steps(again) == [2, 3, 4]


def test_going_on_from_an_older_one_would_overwrite_the_newer(tmp_path):
    filled(tmp_path, 3)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.load(checkpoints.paths[0])
    message = occupied(checkpoints.begin, 1)
    assert (
        "step-0000000003.pt: saved after 3 steps, and this run has done 1: it would be overwritten" in message
    )


def test_a_path_elsewhere_gives_no_right_to_this_folder(tmp_path):
    filled(tmp_path / "a", 3)
    elsewhere = save_checkpoint(tmp_path / "b.pt", {})
    checkpoints = Checkpoints(tmp_path / "a")
    checkpoints.load(elsewhere)
    occupied(checkpoints.begin, 5)


def test_leftovers_are_removed_at_the_start(tmp_path):
    left = tmp_path / ".step-0000000004.pt.0123456789ab.amp-lab-tmp"
    left.write_bytes(b"half")
    Checkpoints(tmp_path).begin(0)
    assert not left.exists()
    Checkpoints(tmp_path / "none").begin(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, r"Checkpoints\(keep=0\): keep is a whole number of at least 1"),
        ({"every": 1.5}, r"Checkpoints\(every=1\.5\)"),
        ({"every": True}, r"Checkpoints\(every=True\)"),
        (
            {"best": "accuracy"},
            r"Checkpoints\(best='accuracy'\): say which way is better, as in 'max accuracy'",
        ),
        ({"best": "max "}, "say which way is better"),
        ({"best": 3}, "say which way is better"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path, **options)


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(CheckpointError, match=r"a: this is a file: give a folder"):
        Checkpoints(tmp_path / "a").begin(0)


def test_a_file_system_without_locks_grants_all(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "lockf", no_locks)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.begin(0)
    checkpoints.save(1, step=1)
    checkpoints.end()
    assert steps(checkpoints) == [1]


def test_a_copy_of_a_lock_is_one_on_the_same_folder_and_not_taken(tmp_path):
    taken = lock.FolderLock(tmp_path / "a")
    taken.take()
    copied = copy.deepcopy(taken)
    taken.release()
    (tmp_path / "a" / ".amp-lab-lock").unlink()
    copied.take()
    assert (tmp_path / "a" / ".amp-lab-lock").exists()
    copied.release()
