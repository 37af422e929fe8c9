"""Training runs that take turns."""

import threading

import pytest
import torch

from benchmarks.training.turns import Turns


def logs(log, name):
    """Return a run that notes every batch that it sees, and the batch before it when that one is done."""

    def run(loader):
        for batch in loader:
            log.append((name, batch))

    return run


def test_each_run_goes_on_in_its_turns_only():
    log = []
    a, b = Turns(logs(log, "a"), ["x", "y"]), Turns(logs(log, "b"), ["z"])
    assert log == []
    a.take(3)
    assert log == [("a", "x"), ("a", "y"), ("a", "x")]
    b.take(1)
    a.take(1)
    assert log[3:] == [("b", "z"), ("a", "y")]
    a.close()
    b.close()


def test_a_turn_ends_when_its_last_step_is_done():
    """Not when its last batch is handed out."""
    done, slow = [], threading.Event()

    def run(loader):
        for batch in loader:
            slow.wait(0.05)
            done.append(batch)

    turns = Turns(run, [1, 2, 3])
    turns.take(2)
    assert done == [1, 2]
    turns.close()


def test_an_error_in_a_run_comes_out_of_its_turn():
    def run(loader):
        for batch in loader:
            raise ZeroDivisionError(batch)

    turns = Turns(run, ["x"])
    with pytest.raises(RuntimeError, match=r"the run ended: ZeroDivisionError\('x'\)"):
        turns.take(1)


def test_a_run_that_takes_no_batches_has_no_turn():
    with pytest.raises(RuntimeError, match="its loader had more batches"):
        Turns(lambda loader: None, ["x"])


def test_a_run_computes_on_as_many_threads_as_its_maker():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        turns = Turns(lambda loader: seen.extend(torch.get_num_threads() for _ in loader), ["x"])
        turns.take(1)
        turns.close()
    finally:
        torch.set_num_threads(before)
    assert seen == [3]


def test_no_thread_is_left():
    before = threading.active_count()
    turns = Turns(logs([], "a"), ["x"])
    turns.take(1)
    turns.close()
    assert threading.active_count() == before
