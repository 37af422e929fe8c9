"""`--spawn`: processes on one machine without torchrun, which end together, however one of them ends."""

import os
import signal
import time

import pytest

from amp_lab.train import ddp
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.distributed import launching
from tests.train.distributed import programs
from tests.train.distributed.launches import Started, in_session, started

LONG = ["--quiet", "--epochs", "3000", "--precision", "fp16", "--every", "5"]


def spawned(happens, *args):
    return launching.spawn(programs.program, 2, happens, *args)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two ranks each, all at once: most of their time is that of importing torch."""
    folder = tmp_path_factory.mktemp("spawned")
    running = {
        "died": Started(folder, 0, {}, spawned, (programs.die,)),
        "hangs": Started(folder, 1, {}, spawned, (programs.hang, 1, 5, 3.0)),
        "stopped": Started(
            folder, 2, {}, ddp.main, ([*LONG, "--checkpoints", str(folder / "a"), "--spawn", "2"],)
        ),
        "orphaned": Started(
            folder, 3, {}, ddp.main, ([*LONG, "--checkpoints", str(folder / "b"), "--spawn", "2"],)
        ),
    }
    yield running, folder
    for each in running.values():
        each.kill()


def test_sigterm_saves_and_says_how_to_go_on(runs):
    running, folder = runs
    wait_for_steps(folder / "a")
    running["stopped"].send(signal.SIGTERM)
    ended = running["stopped"].ended(30)
    assert ended.code == 143, ended
    newest = Checkpoints(folder / "a").newest
    (line,) = ended.output.splitlines()
    assert line.startswith("stopped (")
    assert "SIGTERM), " in line
    assert f"saved in {newest}" in line
    assert line.endswith("the same command goes on from there")


def test_one_killed_all_ended(runs):
    running, _ = runs
    ended = running["died"].ended()
    assert ended.code == 128 + signal.SIGKILL, ended
    assert "rank 1 was ended by SIGKILL, and the others with it" in ended.output
    assert "Traceback" not in ended.output


def test_one_hangs_all_ended(runs):
    """Rank 0 waits 3 s, names the one that hangs, and ends; that one gets SIGTERM, which sleep does not answer."""
    running, _ = runs
    ended = running["hangs"].ended()
    assert ended.code == 1, ended
    assert "rank 0: rank 1 (pid" in ended.output
    assert "is missing: it has been in step 5" in ended.output
    assert "Traceback" not in ended.output


def test_their_parent_is_killed(runs):
    """The system tells the children; they save and end. Nobody is left to hold the folder."""
    running, folder = runs
    wait_for_steps(folder / "b")
    leader = running["orphaned"].process.pid
    os.kill(leader, signal.SIGKILL)
    end = time.monotonic() + 30
    while (left := in_session(leader)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []
    assert "SIGTERM), " in running["orphaned"].output


def test_a_run_goes_on_with_more_epochs(tmp_path):
    """It says from where; and its schedule is not at its end."""
    options = ["--quiet", "--checkpoints", str(tmp_path / "c"), "--epochs"]
    outputs = []
    for epochs in (1, 2):
        (run,) = started(tmp_path, ddp.main, ([*options, str(epochs)],))
        assert run.ended().code == 0, run.output
        outputs.append(run.output)
    assert [text.count("goes on from") for text in outputs] == [0, 1]
    first, second = outputs[1].splitlines()
    assert (
        first
        == f"goes on from {tmp_path}/c/step-0000000045.pt, with its learning rate (--lr is for the start)"
    )
    assert second.startswith("2 epochs, 90 steps, 1 rank, ")
    (group,) = Checkpoints(tmp_path / "c").load()["optimizer"]["param_groups"]
    assert group["lr"] == pytest.approx(0.003 * 0.9**2)


def test_what_children_inherit_is_not_left_behind(monkeypatch):
    monkeypatch.setenv("GIVEN", "mine")
    monkeypatch.delenv("NEW", raising=False)
    with launching._inherited({"GIVEN": "theirs", "NEW": "1"}):
        assert (os.environ["GIVEN"], os.environ["NEW"]) == ("mine", "1")
    assert os.environ["GIVEN"] == "mine"
    assert "NEW" not in os.environ


def test_signals_are_what_they_were_afterwards():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with launching._passed_on([]):
        os.kill(os.getpid(), signal.SIGTERM)  # to nobody, and this process goes on
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def wait_for_steps(folder):
    end = time.monotonic() + 60
    while not Checkpoints(folder).paths:
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.05)
