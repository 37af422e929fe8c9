"""A call that not all ranks make is told while it is waited for, with its line; one that only takes long is not."""

import time
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from amp_lab.train.distributed import lone_calls
from amp_lab.train.distributed.failures import RanksDiffer
from amp_lab.train.distributed.lone_calls import apart, note, waiting
from amp_lab.train.distributed.workers import run_ranks
from tests.train.test_trainer_ddp import small, values  # noqa: F401

ALL = "all ranks must make the same calls in the same order. (Rank 0 alone writes files, whoever calls save.)"


@pytest.fixture
def group():
    store = HashStore()
    return SimpleNamespace(get_group_store=lambda: store)


def test_who_has_not_called(group):
    def save(rank):
        note(group, rank)

    def evaluate(rank):
        return note(group, rank)

    assert apart(group, 3) == "", "nobody has called anything"
    assert evaluate(1) == "evaluate"
    line = evaluate.__code__.co_firstlineno + 4
    here = f"rank 1 waits in evaluate (test_lone_calls.py, line {line}, test_who_has_not_called), "
    assert apart(group, 3) == f"{here}which ranks 0, 2 have not called so far: {ALL}"
    evaluate(0)
    assert "which rank 2 has not called so far" in apart(group, 3)
    save(2)
    assert "rank 0 waits in evaluate (" in apart(group, 3)
    assert ", rank 2 in save (test_lone_calls.py, line " in apart(group, 3)
    for rank in (0, 1, 2):
        save(rank)
    assert apart(group, 3) == ""


def test_one_rank_speaks(group, monkeypatch, capfd):
    monkeypatch.setattr(lone_calls, "_PATIENCE", 0.0)
    said = []
    for rank in (1, 2):
        note(group, rank)
    for rank in (2, 1):
        with waiting(group, rank, 3) as timer:
            timer.join(60)
        said.append(capfd.readouterr().err)
    assert said[0] == ""
    assert said[1].startswith("rank 1 has waited for 0 s: rank 1 waits in test_one_rank_speaks")
    assert said[1].endswith(f"which rank 0 has not called so far: {ALL}\n")


def test_a_group_without_a_store_has_no_notes():
    assert note(object(), 0) == "test_a_group_without_a_store_has_no_notes"
    assert apart(object(), 2) == ""


def test_a_save_on_one_rank(small, tmp_path):  # noqa: F811
    def alone(rank):
        lone_calls._PATIENCE = 0.5

        def keep_best(record):
            if rank == 0 and trainer.step == 3:
                trainer.save(tmp_path / "best.pt")

        trainer = small()
        trainer.callback = keep_best
        trainer.fit(small.batches(rank, 2))

    first, second = run_ranks(alone, collective_timeout=4, grace=20)
    waits = "rank 0 waits in save (test_lone_calls.py, line "
    assert first.output.startswith(f"rank 0 has waited for 0 s: {waits}"), first
    assert first.output.endswith(f", keep_best), which rank 1 has not called so far: {ALL}\n")
    assert second.output == ""
    for each in (first, second):
        assert f"RankFailed: another rank does not answer: {waits}" in each.error, each


def test_ranks_that_come_late_and_ranks_that_meet_in_other_calls(small, tmp_path):  # noqa: F811
    def late(rank):
        lone_calls._PATIENCE = 0.5
        trainer = small()

        def slow():
            if rank == 1:
                time.sleep(1.5)
            return rank

        assert trainer.ranks.each(slow) == [0, 1]
        print("it has called, and only takes long", flush=True)
        slow()
        trainer.save(tmp_path / "late.pt")
        print("it has come late", flush=True)
        if rank == 0:
            time.sleep(1.5)
        assert trainer.ranks.first_does(lambda: rank) == 0
        try:
            trainer.evaluate(small.batches(rank, 2)) if rank else trainer.state_dict()
        except RanksDiffer as error:
            return str(error)

    outcomes = run_ranks(late)
    told = values(outcomes)
    assert told == [f"one call of all ranks is state_dict on rank 0, evaluate on rank 1: {ALL}"] * 2
    first, second = (each.output.splitlines() for each in outcomes)
    long, late = "it has called, and only takes long", "it has come late"
    assert first[1].startswith("rank 0 has waited for 0 s: rank 0 waits in save (test_lone_calls.py, line ")
    assert [first[0], *first[2:]] == [long, late]
    assert second[2].startswith("rank 1 has waited for 0 s: rank 1 waits in late (")
    assert [*second[:2], *second[3:]] == [long, late]
