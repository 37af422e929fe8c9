"""Processes for experiments: what each of them says, prints and dies of; and that none is left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from amp_lab.train.distributed.workers import run_ranks


def test_all_ranks_form_a_group_and_return():
    factor = 10.0

    def add(rank, more):
        tensor = torch.tensor([rank * factor])
        dist.all_reduce(tensor)
        print("out", rank)
        print("err", rank, file=sys.stderr)
        os.system("echo from a child")
        return tensor + more, dist.get_rank(), dist.get_world_size(), torch.get_num_threads()

    outcomes = run_ranks(add, 3, 0.5)
    for rank, outcome in enumerate(outcomes):
        assert (outcome.rank, outcome.ended, outcome.error) == (rank, "returned", "")
        assert outcome.value == (torch.tensor([30.5]), rank, 3, 1)
        assert outcome.output.splitlines() == [f"out {rank}", f"err {rank}", "from a child"]
    assert [each.value for each in run_ranks(lambda rank: rank, 1)] == [0]


def test_an_error_is_told_and_the_others_end_soon():
    def one_fails(rank):
        if rank:
            raise ValueError("no such thing")
        time.sleep(60)

    waits, fails = run_ranks(one_fails, 2, grace=0.3)
    assert (fails.ended, fails.error) == ("raised", "ValueError: no such thing")
    assert "in one_fails" in fails.traceback
    assert waits.ended == "stopped"
    assert "one_fails" in waits.error
    assert "one_fails" in waits.traceback


def test_no_grace_is_longer_than_the_time_for_all():
    def one_fails(rank):
        if rank:
            raise ValueError("no such thing")
        time.sleep(20)

    waits, _ = run_ranks(one_fails, 2, timeout=3, grace=60)
    assert waits.ended in ("stopped", "timed out")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda: os._exit(3), "ended with exit code 3, without a word"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    ],
)
def test_a_process_that_dies(end, error):
    (outcome,) = run_ranks(lambda rank: end(), 1)
    assert (outcome.ended, outcome.error, outcome.value) == ("died", error, None)


def test_sys_exit_is_told():
    (outcome,) = run_ranks(lambda rank: sys.exit(2), 1)
    assert (outcome.ended, outcome.error) == ("raised", "SystemExit: 2")


def test_a_value_that_cannot_be_sent_is_an_error():
    (outcome,) = run_ranks(lambda rank: threading.Lock(), 1)
    assert outcome.ended == "raised"
    assert "pickle" in outcome.error


def test_what_hangs_is_killed_with_its_children_and_says_where_it_was():
    def hang(rank):
        if rank:
            os.system("sleep 61.5")
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            dist.barrier()

    barrier, sleeps = run_ranks(hang, 2, timeout=6)
    assert (barrier.ended, sleeps.ended) == ("timed out", "timed out")
    assert "barrier" in barrier.error
    assert "hang" in sleeps.error
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "61.5"]
    ]


def test_a_collective_without_its_partner_raises_in_time():
    def alone(rank):
        if rank == 0:
            dist.all_reduce(torch.ones(1))
        else:
            time.sleep(20)

    waits, sleeps = run_ranks(alone, 2, collective_timeout=1, grace=0.3)
    assert waits.ended == "raised"
    assert "Timed out waiting 1000ms" in waits.error
    assert sleeps.ended == "stopped"


def test_a_progress_bar_leaves_no_lock_behind(tmp_path):
    """What outlives a process is told of when its parent ends: so in a parent of its own.

    It is a script without `if __name__ == "__main__"`: the ranks do not run it again.
    """
    script = """
from amp_lab.train.distributed.workers import run_ranks

def bar(rank):
    from tqdm import tqdm
    tqdm(range(3)).close()

print([each.ended for each in run_ranks(bar)])
"""
    file = tmp_path / "bars.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("['returned', 'returned']\n", "")


def test_ranks_end_with_the_program_that_started_them(tmp_path):
    script = """
import os, pathlib, sys, time
from amp_lab.train.distributed.workers import run_ranks

def wait(rank, folder):
    (pathlib.Path(folder) / str(rank)).write_text(str(os.getpid()))
    time.sleep(60)

run_ranks(wait, 2, sys.argv[1])
"""
    program = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    files = [tmp_path / "0", tmp_path / "1"]
    while not all(file.exists() and file.read_text() for file in files):
        assert program.poll() is None
        time.sleep(0.1)
    ranks = [psutil.Process(int(file.read_text())) for file in files]
    program.kill()
    program.wait()
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive


def test_a_rank_that_dies_is_not_waited_for_because_its_child_lives():
    def die(rank):
        if os.fork() == 0:
            time.sleep(40)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    (outcome,) = run_ranks(die, 1, timeout=30)
    assert (outcome.ended, outcome.error) == ("died", "killed by SIGKILL")


def test_what_cannot_be_read_here_is_told_and_the_other_ranks_have_their_say():
    class Unreadable:
        def __reduce__(self):
            return divmod, (1, 0)

    kind = Unreadable  # of here: it travels with the function
    first, second = run_ranks(lambda rank: kind() if rank else 5)
    assert (first.ended, first.value) == ("returned", 5)
    assert second.ended == "raised"
    assert "cannot be read here: ZeroDivisionError" in second.error


def test_workers_of_a_loader_start_as_in_any_other_program():
    def load(rank):
        loader = torch.utils.data.DataLoader(range(4), 2, num_workers=1)
        return multiprocessing.get_start_method(), [batch.tolist() for batch in loader]

    (outcome,) = run_ranks(load, 1)
    default = multiprocessing.get_all_start_methods()[0]
    assert outcome.value == (default, [[0, 1], [2, 3]]), outcome.traceback


def test_a_rank_may_close_its_output():
    (outcome,) = run_ranks(lambda rank: sys.stdout.close(), 1)
    assert outcome.ended == "returned"


@pytest.mark.parametrize("ranks", [0, 1.5, True, "2"])
def test_no_number_of_processes_is_no_answer(ranks):
    with pytest.raises(ValueError, match="ranks is a whole number of at least 1"):
        run_ranks(lambda rank: rank, ranks)
