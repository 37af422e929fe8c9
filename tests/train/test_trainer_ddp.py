"""Trainer on two ranks: the same bits as one process that accumulates both parts, and the same history everywhere."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from amp_lab.train.distributed.shards import DevShard
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.metrics import accuracy
from amp_lab.train.trainer import Trainer

INPUTS = torch.randn(96, 6, generator=torch.Generator().manual_seed(5))
TARGETS = torch.randint(0, 3, (96,), generator=torch.Generator().manual_seed(6))


def values(outcomes):
    """Return what the ranks returned; what one raised, with its output, is the failure of the test."""
    for each in outcomes:
        assert each.ended == "returned", f"rank {each.rank}: {each.traceback}\n{each.output}"
    return [each.value for each in outcomes]


@pytest.fixture
def small():
    """A maker of Trainers, by value: a rank need not import this module."""
    inputs, targets = INPUTS, TARGETS

    def make(wrap=True, seed=3, layers=(), lr=0.1, **settings):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 3))
        if wrap:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        settings = {"precision": "fp32", "device": "cpu", "metrics": {"accuracy": accuracy}, **settings}
        return Trainer(model, nn.CrossEntropyLoss(), optimizer, seed=seed, progress=False, **settings)

    def batches(rank, ranks, size=4):
        own = range(rank, len(inputs), ranks)
        return [(inputs[list(part)], targets[list(part)]) for part in _chunks(own, size)]

    def _chunks(own, size):
        return [own[start : start + size] for start in range(0, len(own), size)]

    make.batches, make.trainer = batches, Trainer
    make.data = TensorDataset(inputs, targets)
    return make


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_two_ranks_are_one_process_that_accumulates_both_parts(small, precision):
    def train(rank):
        trainer = small(precision=precision, clip_norm=1.0)
        dev = DataLoader(small.data, 5, sampler=DevShard(small.data))
        history = trainer.fit(small.batches(rank, 2), dev, epochs=5)
        return dict(trainer.model.module.state_dict()), history, trainer.evaluate(dev)

    (first, histories, dev), (second, other, other_dev) = values(run_ranks(train))
    alone = small(wrap=False, precision=precision, clip_norm=1.0, accumulate=2)
    parts = zip(small.batches(0, 2), small.batches(1, 2), strict=True)
    alone.fit([batch for pair in parts for batch in pair], DataLoader(small.data, 5), epochs=5)
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(weight, first[name]), name
        assert torch.equal(weight, second[name]), name
    assert histories == other
    assert dev == other_dev
    assert histories.steps == alone.history.steps
    assert len(histories.steps) == 60
    assert histories.epochs[-1].dev_loss == pytest.approx(alone.history.epochs[-1].dev_loss, rel=1e-6)
    assert histories.epochs[-1].metrics == pytest.approx(alone.history.epochs[-1].metrics, rel=1e-6)
    full = small(wrap=False, precision=precision, clip_norm=1.0)
    full.fit(small.batches(0, 1, 8), epochs=5)
    assert histories.losses[0] == pytest.approx(
        full.history.losses[0], rel=1e-5 if precision == "fp32" else 1e-2
    )
    if precision == "fp32":  # the same batches, added in another order
        for name, weight in full.model.state_dict().items():
            assert (weight - first[name]).norm() < 1e-5 * weight.norm(), name


def test_windows_of_uneven_sizes_count_each_sample_once(small):
    """Ranks with 12 and 9 samples, two micro-batches to a step, the last ones alone and of other sizes."""

    def train(rank):
        batches = small.batches(rank, 2)[:3]
        if rank == 1:
            batches[2] = tuple(part[:1] for part in batches[2])
        trainer = small(accumulate=2, lr=0.01)
        calls = []

        def hook(state, bucket):
            calls.append(1)
            bucket.buffer().div_(2)
            work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        # DDP compares the annotations with its own types, if there are any.
        trainer.model.register_comm_hook(None, hook)
        trainer.fit(batches, epochs=2)
        return dict(trainer.model.module.state_dict()), trainer.history, len(calls)

    (first, history, calls), (second, other, other_calls) = values(run_ranks(train))
    assert history == other
    assert [each.samples for each in history.steps] == [16, 5] * 2
    assert calls == other_calls == 4  # one bucket, in the last micro-batch of each step
    alone = small(wrap=False, lr=0.01)
    one, two = small.batches(0, 2), small.batches(1, 2)
    two[2] = tuple(part[:1] for part in two[2])
    both = [
        [torch.cat(parts) for parts in zip(*window, strict=True)]
        for window in ((*one[:2], *two[:2]), (one[2], two[2]))
    ]
    alone.fit(both, epochs=2)
    assert history.losses == pytest.approx(alone.history.losses, rel=1e-5)
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], weight, rtol=1e-4, atol=1e-6)


def test_a_thousand_steps_with_overflows_on_random_ranks(small):
    def train(rank):
        chance = torch.Generator().manual_seed(20 + rank)
        cross_entropy = nn.functional.cross_entropy

        def loss_fn(outputs, target):
            if torch.rand((), generator=chance) < 0.02:
                outputs.register_hook(lambda gradient: gradient * torch.inf)
            return cross_entropy(outputs, target)

        trainer = small(precision="fp16", metrics=None)
        trainer.loss_fn = loss_fn
        trainer.scaler.set_growth_interval(20)
        messages = []
        all_gather = torch.distributed.all_gather

        def counted(rows, mine, **kwargs):
            messages.append(mine.numel())
            return all_gather(rows, mine, **kwargs)

        torch.distributed.all_gather = counted
        batches = [batch for batch in small.batches(rank, 2, 8) for _ in range(50)]
        trainer.fit(batches[:100])
        few = len(messages)
        batches = batches + batches + batches + batches[:100]
        trainer.fit(batches, epochs=2)
        weights = torch.cat([each.detach().reshape(-1) for each in trainer.parameters])
        return trainer.history, trainer.scaler.get_scale(), weights, (few, len(messages) - few, messages[-1])

    (history, scale, weights, messages), (other, other_scale, other_weights, _) = values(run_ranks(train))
    assert len(history) == 1100
    assert 20 < sum(history.skipped) < 80
    assert history == other
    assert scale == other_scale
    assert torch.equal(weights, other_weights)
    assert weights.isfinite().all()
    few, many, size = messages
    assert (few, many) == (
        100 + 2,
        1000 + 1,
    )  # one message a step, one in the very first, one before each epoch
    assert size == 5


def test_all_that_stands_around_the_step(small, tmp_path):
    """Watched, with dropout, BatchNorm and steps outside of fit: both ranks alike, and nothing is found."""

    def train(rank):
        import copy
        import warnings

        import amp_lab

        layers = nn.BatchNorm1d(8), nn.Dropout(0.5)
        batches = small.batches(rank, 2)
        trainer = small(layers=layers, precision="fp16", clip_norm=0.5, accumulate=2, checkpoints=tmp_path)
        with amp_lab.watch(trainer.model, trainer.optimizer, trainer.scaler) as seen:
            trainer.fit(batches, batches[: 2 + rank], epochs=2)
        record = trainer.train_step(batches[:2])
        measured = trainer.evaluate(small.batches(0, 1)), copy.deepcopy(trainer.model.module.state_dict())
        trainer.save(tmp_path / "last.pt")
        drawn = torch.rand(2).tolist()
        trainer.load(tmp_path / "last.pt")
        assert torch.rand(2).tolist() == drawn
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            small(layers=layers, seed=None).fit(batches)
        return (
            trainer.history,
            record,
            measured,
            drawn,
            seen.report().ids,
            [str(each.message) for each in said],
        )

    (first, second) = values(run_ranks(train))
    (*first, (measured, state), mask, ids, said), (*second, (same, _), other_mask, other_ids, not_said) = (
        first,
        second,
    )
    assert first == second
    rank_0s = small(wrap=False, layers=(nn.BatchNorm1d(8), nn.Dropout(0.5)), precision="fp16")
    rank_0s.model.load_state_dict(state)
    assert measured == same
    assert measured == pytest.approx(
        rank_0s.evaluate(small.batches(0, 1)), rel=1e-6
    )  # not of rank 1's averages
    assert first[1].samples == 16
    assert mask != other_mask
    assert ids == other_ids == ()
    assert not_said == []
    assert len(said) == 1
    assert said[0].startswith("all ranks draw the same random numbers, so dropout leaves out the same units")
