"""Who is missing, as one rank finds out from what the others have written on the board, or write no more."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from amp_lab.train.distributed import missing
from amp_lab.train.distributed.board import Board
from amp_lab.train.distributed.missing import Listener, blame
from amp_lab.train.distributed.places import Place
from amp_lab.train.distributed.pulse import Pulse


class Lost:
    """A store that went with its process, and says so in pages."""

    asked = 0

    def __getattr__(self, name):
        def fails(*args):
            self.asked += 1
            raise RuntimeError("Broken pipe")

        return fails


@pytest.fixture
def boards():
    store = HashStore()
    return [Board(store, rank, 3) for rank in range(3)]


def at(step, doing="forward", waiting=False, **more):
    return Place(step, doing, waiting, **more)


def test_who_has_last_words_is_named_at_once(boards):
    boards[2].last_words(7, "ValueError: no cat")
    assert boards[0].left() == [2]
    told = blame(boards[0], 8, patience=60)
    assert told == (
        f"rank 2 ({boards[0].words().split('(')[1].split(')')[0]}) ended after step 7: ValueError: no cat",
        True,
    )
    assert f"(pid {os.getpid()} on " in told.said


def test_who_writes_no_more_is_silent(boards):
    boards[1].write(at(4, beat=9))
    told = blame(boards[0], 5, patience=0.1)
    assert told.sure
    assert told.said.startswith(f"rank 1 (pid {os.getpid()} on ")
    assert (
        "is silent: was it killed, or is it frozen? This one is in step 5; the other one, which" in told.said
    )
    assert told.said.endswith(" last wrote in step 4 (forward)")


def test_who_has_left_after_waiting_in_vain_is_not_silent(boards):
    boards[1].write(at(4, "clipping", waiting=True, beat=9))
    boards[1].leave()
    said, sure = blame(boards[0], 5, patience=0.1)
    assert said.startswith("the others wait, too, at another place: rank 1 in step 4 (clipping)")
    assert not sure


def test_who_is_behind_is_named(boards, monkeypatch):
    """Of those that still write and do not wait, the one with the fewest steps."""

    def write():
        boards[1].write(at(6, beat=2))
        boards[2].write(at(5, "reading a batch", beat=1, since=12.4))
        return ""

    boards[1].write(at(6, beat=1))
    monkeypatch.setattr(boards[0], "words", write)  # while it listens
    said, sure = blame(boards[0], 6, patience=0.1)
    assert said.endswith("is missing: it has been in step 5 for 12 s: reading a batch")
    assert said.startswith("rank 2 (pid ")
    assert not sure


def test_a_store_that_is_gone():
    lost = Lost()
    board = Board(lost, 1, 2)
    told = blame(board, 3, patience=0.3)
    assert told.said.startswith("nobody answers where the ranks meet: rank 0 has ended")
    assert not told.sure
    with pytest.raises(RuntimeError, match="the store is gone"):
        board.write(at(3))
    assert lost.asked == 1
    assert blame(Board(Lost(), 0, 1), 3) == ("", False), "alone, nobody can be missing"


def test_two_ranks_that_wait_for_each_other_in_vain():
    """Neither is missing, or silent: each is told where the other one waited before it looked for who is to blame."""
    store = HashStore()
    pulses = [Pulse(store, rank, 2) for rank in range(2)]
    with pulses[0], pulses[1], ThreadPoolExecutor(2) as pool:
        for rank, each in enumerate(pulses):
            each._place = Place(7, f"place {rank}", False)
            each.lost()
        second = pool.submit(lambda: (blame(pulses[1].board, 7, 2.0), pulses[1].board.leave()))
        first = blame(pulses[0].board, 7, 4.0)
        assert not second.result()[0].sure
    assert first.said.startswith("the others wait, too, at another place: rank 1 in step 7 (place 1)")


def test_who_is_gone(monkeypatch):
    """One who has said so, one who is not heard any more, and everybody, if the store is gone."""
    monkeypatch.setattr(missing, "_SILENT", 0.3)
    store = HashStore()
    mine, other = Board(store, 0, 2), Board(store, 1, 2)
    listener = Listener(mine)

    def beat(number):
        other.write(Place(number, "a step", False, beat=number))

    beat(1)
    assert not listener.misses()
    time.sleep(0.2)
    beat(2)
    time.sleep(0.2)
    assert not listener.misses(), "it was heard between"
    time.sleep(0.4)
    assert listener.misses(), "silent"
    beat(3)
    assert not listener.misses()
    other.leave()
    assert listener.misses()

    assert Listener(Board(Lost(), 0, 2)).misses()


def test_one_rank_says_what_all_have_found(boards):
    assert [each.says_first("the same") for each in boards] == [True, False, False]
    assert boards[1].says_first("another")
    assert Board(Lost(), 1, 2).says_first("the same"), "rather twice than never"


def test_who_hosts_the_store_waits_for_the_others(boards):
    with ThreadPoolExecutor(1) as pool:
        boards[1].leave()
        waits = pool.submit(boards[0].wait_for_others, 60)
        time.sleep(0.2)
        assert not waits.done()
        boards[2].leave()
        waits.result(30)
    boards[1].wait_for_others(0.0)  # and not for ever
