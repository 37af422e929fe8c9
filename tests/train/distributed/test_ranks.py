"""What ranks ask each other: alone, with the answers at once; together, with the same answers on each."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.distributed.failures import RankFailed, RanksDiffer
from amp_lab.train.distributed.several import ddp_of, ranks_of
from amp_lab.train.distributed.shards import DevShard
from amp_lab.train.distributed.workers import run_ranks

CPU = torch.device("cpu")


def test_alone():
    model = nn.BatchNorm1d(2)
    ranks = ranks_of(model, CPU)
    assert (ranks.rank, ranks.size, ranks.first) == (0, 1, True)
    assert ranks.rows([1, 2.5]) == [[1.0, 2.5]]
    assert ranks.any(True)
    assert not ranks.any(False)
    assert ranks.gather("x") == ["x"]
    assert ranks.share([1]) == [1]
    assert ranks.each(lambda: 3) == [3]
    assert ranks.first_does(lambda: 4) == 4
    assert ranks.model_inside(model) is model
    ranks.agree("all", 5)
    with pytest.raises(LookupError, match="own"):
        ranks.each(lambda: (_ for _ in ()).throw(LookupError("own")))
    with ranks.accumulating(last=False):
        pass


def test_three_together():
    device = CPU

    def ask(rank):
        model = DistributedDataParallel(nn.BatchNorm1d(2))
        ranks = ranks_of(torch.compile(model, backend="eager"), device)
        with torch.no_grad():
            model.module.running_mean.fill_(rank)

        def fails(on):
            if rank == on:
                raise LookupError("lost\nand more")
            return rank

        answers = [
            (ranks.rank, ranks.size, ranks.first),
            [ranks.any(rank == 2), ranks.any(False)],
            ranks.rows([rank + 0.1, torch.inf]),
            ranks.gather({"tensor": torch.full((2,), rank)})[1]["tensor"].tolist(),
            ranks.share(f"from {rank}"),
            ranks.each(lambda: 10 * rank),
            ranks.first_does(lambda: f"by {rank}"),
            ranks.own_buffers(),
        ]
        ranks.agree("colour", "red")
        errors = []
        for attempt in (
            lambda: ranks.agree("colour", "red" if rank else "blue"),
            lambda: ranks.each(lambda: fails(1)),
            lambda: ranks.first_does(lambda: fails(0)),
        ):
            with pytest.raises((RanksDiffer, RankFailed, LookupError)) as caught:
                attempt()
            errors.append(f"{type(caught.value).__name__}: {caught.value}")
        ranks.same_buffers()
        with ranks.accumulating(last=False):
            before = model.require_backward_grad_sync
        copied = copy.copy(ranks)
        return answers, errors, model.module.running_mean.tolist(), before, copied.any(rank == 1)

    outcomes = run_ranks(ask, 3)
    assert [each.error for each in outcomes] == [""] * 3, outcomes
    firsts = [each.value[0].pop(0) for each in outcomes]
    assert firsts == [(0, 3, True), (1, 3, False), (2, 3, False)]
    for rank, outcome in enumerate(outcomes):
        answers, errors, buffer, synced, any_copied = outcome.value
        assert answers == [
            [True, False],
            [[0.1, torch.inf], [1.1, torch.inf], [2.1, torch.inf]],
            [1, 1],
            "from 0",
            [0, 10, 20],
            "by 0",
            {},
        ]
        assert errors[0].startswith(
            "RanksDiffer: colour must be the same on all ranks, and is 'blue' on rank 0, 'red' on"
        )
        assert errors[1] == (
            "LookupError: lost\nand more"
            if rank == 1
            else "RankFailed: rank 1 cannot go on, so this one ends, too: LookupError: lost"
        )
        assert errors[2].startswith("LookupError" if rank == 0 else "RankFailed: rank 0 cannot go on")
        assert buffer == [0.0, 0.0]
        assert synced is False
        assert any_copied


def test_ddp_of():
    assert ddp_of(nn.Linear(1, 1)) is None
    assert ddp_of(nn.DataParallel(nn.Linear(1, 1))) is None


def test_a_dev_shard_deals_each_sample_out_once():
    shards = [list(DevShard(range(8), rank, 3)) for rank in range(3)]
    assert shards == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert [len(DevShard(range(8), rank, 3)) for rank in range(3)] == [3, 3, 2]
    assert list(DevShard(range(1), 1, 2)) == []
    assert list(DevShard(range(3))) == [0, 1, 2]
    with pytest.raises(ValueError, match="ranks go from 0 to size - 1"):
        DevShard(range(3), 2, 2)
