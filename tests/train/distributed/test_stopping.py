"""What signals do to a rank: the first one asks it to stop; one that cannot is ended by a thread, and no other is."""

import contextlib
import os
import signal
import time

import pytest
from torch.distributed import HashStore

from amp_lab.train.distributed import stopping
from amp_lab.train.distributed.board import Board
from amp_lab.train.distributed.places import SAVING, Place
from amp_lab.train.distributed.stopping import Stopping

LONG = 1.2  # seconds: more than all the limits below together


class Rank:
    """As a pulse sees it; `going`: each look at it finds a step more."""

    def __init__(self, size=2, going=False, doing="waiting"):
        store = HashStore()
        self.board, self.other = Board(store, 0, size), Board(store, 1, size)
        self.going, self.doing, self.steps = going, doing, 0
        self.reasons, self.exits = [], []

    @property
    def step(self):
        self.steps += self.going
        return self.steps

    @property
    def place(self):
        return Place(self.steps, self.doing, True)

    def exits_within(self, seconds):
        end = time.monotonic() + seconds
        while not self.exits and time.monotonic() < end:
            time.sleep(0.02)
        return self.exits


@pytest.fixture
def begin(monkeypatch):
    """Put a rank into a `with Stopping`, with limits of tenths of a second; its process is not really ended."""
    for name, seconds in {"_ONE": 0.4, "_GRACE": 0.2, "_LATER": 0.1, "_LOOK": 0.02}.items():
        monkeypatch.setattr(stopping, name, seconds)

    @contextlib.contextmanager
    def begun(rank):
        with Stopping(rank.reasons.append, rank) as stops:

            def end(code):
                rank.exits.append(code)
                stops._end.set()

            monkeypatch.setattr(os, "_exit", end)
            yield stops

    return begun


def send(number):
    os.kill(os.getpid(), number)


def test_the_first_signal_asks_for_a_stop(begin):
    before = signal.getsignal(signal.SIGTERM)
    rank = Rank(going=True)
    with begin(rank) as stops:
        assert stops.signal is None
        send(signal.SIGTERM)
        assert rank.exits_within(LONG) == [], "it goes on, so it will stop by itself"
        assert (rank.reasons, stops.signal) == (["SIGTERM"], signal.SIGTERM)
    assert stops.exit_code() == 143
    assert (stops._watcher.is_alive(), signal.getsignal(signal.SIGTERM)) == (False, before)
    assert signal.set_wakeup_fd(-1) == -1, "nobody listens there any more"


@pytest.mark.parametrize(
    ("number", "size", "code"), [(signal.SIGTERM, 2, [143]), (signal.SIGINT, 2, []), (signal.SIGTERM, 1, [])]
)
def test_sigterm_ends_a_rank_whose_step_does_not_end(begin, number, size, code):
    """Launchers kill soon after SIGTERM, without a word. After Ctrl+C, somebody is there who decides; and alone, a step
    ends by itself."""
    rank = Rank(size)
    with begin(rank):
        send(number)
        assert rank.exits_within(60 if code else LONG) == code


def test_a_long_save_is_waited_for(begin):
    rank = Rank(doing=f"{SAVING} (train.py, line 3)")
    with begin(rank):
        send(signal.SIGTERM)
        assert rank.exits_within(LONG) == []
        rank.doing = "waiting"
        assert rank.exits_within(60) == [143]


def test_one_that_waits_for_a_rank_that_is_gone_is_ended(begin):
    rank = Rank()
    with begin(rank):
        rank.other.leave()
        assert rank.exits_within(LONG) == [], "no signal has come: the error of the connection says more"
        send(signal.SIGINT)
        assert rank.exits_within(60) == [130]


def test_one_that_was_silent_for_a_moment_is_waited_for(begin, monkeypatch):
    looks = iter([True])
    monkeypatch.setattr(stopping.Listener, "misses", lambda listener: next(looks, False))
    rank = Rank()
    with begin(rank):
        send(signal.SIGINT)
        assert rank.exits_within(LONG) == []
        assert next(looks, "looked") == "looked"


def test_the_same_ctrl_c_may_come_twice(begin):
    """From a terminal and from a launcher. It is no second one, and a long step is waited for."""
    rank = Rank(going=True)
    with begin(rank):
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert rank.exits_within(LONG) == []
        assert rank.reasons == ["Ctrl+C, SIGINT"]


def test_a_second_signal_breaks_off(begin):
    with begin(Rank(going=True)) as stops:
        send(signal.SIGINT)
        time.sleep(2 * stopping._ONE)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert stops.exit_code() == 130


def test_a_second_signal_ends_one_that_cannot_be_broken_off(begin):
    """Its main thread waits in C. (Here, it takes the interrupt and goes on.)"""
    rank = Rank(going=True)
    with begin(rank):
        send(signal.SIGINT)
        time.sleep(2 * stopping._ONE)
        assert rank.exits == []
        with contextlib.suppress(KeyboardInterrupt):
            send(signal.SIGINT)
        assert rank.exits_within(60) == [130]


def test_the_exit_code_of_a_rank_that_got_no_signal():
    quiet = Stopping(print, Rank())
    assert quiet.exit_code("rank 1: Ctrl+C, SIGINT") == 130
    assert quiet.exit_code("rank 1: SIGTERM") == 143
