"""The roll call: who has not come is told, and who has something else; a store may be full of what others have left."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from amp_lab.train.distributed import joining
from amp_lab.train.distributed.errors import LaunchError, is_quiet
from amp_lab.train.distributed.roll_call import called, check_alike, check_different


def on_two(ask):
    """Ask something of rank 0 and of rank 1, two threads with one store; return what they answer, or raise."""
    store = HashStore()

    def tried(rank):
        try:
            return ask(store, rank)
        except LaunchError as error:
            return str(error), is_quiet(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(tried, range(2)))


def test_a_gpu_that_two_processes_have():
    def ask(store, rank):
        return check_different(store, rank, 2, f"GPU {number(rank)} of host", 20)

    def number(rank):
        return numbers[rank]

    numbers = "7", "8"
    assert on_two(ask) == [None, None]
    numbers = "7", "7"
    (said, quiet), (other, other_quiet) = on_two(ask)
    assert said.startswith("ranks 0 and 1 both have GPU 7 of host: each process needs one of its own")
    assert (other, quiet, other_quiet) == (said, False, True)


def test_a_comparison_can_be_repeated():
    """The second one has its own answer: of the first one, rank 1 would have read that all is well."""

    def ask(store, rank):
        group = joining.Group(rank, 2, rank, torch.device("cpu"), "gloo", 20.0, store)
        group.check_alike(seed=0)
        group.check_alike(seed=rank)

    (said, quiet), (other, other_quiet) = on_two(ask)
    assert "has seed 1, rank 0" in said
    assert (other, quiet, other_quiet) == (said, False, True)


def test_after_a_restart_the_dead_are_not_taken_for_the_living():
    """torchrun's store is still the same, with all that the first processes have written."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda rank: called(store, rank, 2, 20), range(2)))
        again = list(pool.map(lambda rank: called(store, rank, 2, 20), range(2)))
    assert first[0] == first[1] != again[0] == again[1]
    with pytest.raises(
        LaunchError, match=r"after 0 s, rank 1 of 2 has not come\. Each machine must start its own"
    ):
        called(store, 0, 2, 0.3)


def test_who_has_not_come():
    with pytest.raises(LaunchError, match=r"ranks 1, 2, 3, 4, 5, 6, 7, 8 … of 11 have not come"):
        called(HashStore(), 0, 11, 0.1)
    with pytest.raises(LaunchError, match="rank 1: rank 0 has not come, or has ended: look into its output"):
        called(HashStore(), 1, 2, 0.1)


def test_what_is_another_thing_on_some_ranks():
    """Facts in a dict are told one by one, three of them, with the ranks that have them."""
    store = HashStore()
    facts = {"options": {"lr": 0.1, "seed": 0}, "data": "23 samples", "torch": "2.13"}
    other = {"options": {"lr": 0.2, "seed": 1}, "data": "22 samples", "torch": "2.9"}
    for rank in (1, 2):
        store.set(
            f"has/{rank}",
            json.dumps([f"rank {rank}", {n: json.dumps(v) for n, v in flat(other if rank == 2 else facts)}]),
        )
    store.add("said/read", 2)  # they have heard
    with pytest.raises(LaunchError) as caught:
        check_alike(store, 0, 3, facts, 20)
    said = str(caught.value)
    assert said.startswith("rank 2 has options.lr 0.2, rank 0 (")
    assert "has 0.1; rank 2 has options.seed 1, rank 0 (" in said
    assert said.count(";") == 2
    assert (
        " (and 1 more). All ranks need the same code, options and data: start them from the same files."
        in said
    )
    assert "rank 1" not in said
    with pytest.raises(LaunchError, match="after 0 s, rank 1 of 2 has not come"):
        check_alike(HashStore(), 0, 2, facts, 0.1)


def flat(facts):
    return [
        *((f"options.{n}", v) for n, v in facts["options"].items()),
        *((n, v) for n, v in facts.items() if n != "options"),
    ]


def test_all_that_is_the_same_is_no_difference():
    assert on_two(lambda store, rank: check_alike(store, rank, 2, {"a": 1, "b": {"c": None}}, 20)) == [
        None,
        None,
    ]
