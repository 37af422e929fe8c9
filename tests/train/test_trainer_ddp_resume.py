"""Checkpoints of several ranks: exact on the same number of ranks, and of use on another."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from amp_lab.train.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from amp_lab.train.distributed.workers import run_ranks
from tests.train.test_trainer_ddp import small, values  # noqa: F401


@pytest.fixture
def run(small, tmp_path):  # noqa: F811
    """A function that trains on a rank, with dropout, BatchNorm and shuffling, to a step or to the end."""
    nn, folder = torch.nn, str(tmp_path)

    def train(rank, ranks=2, stop=None, resume=False, where=folder, epochs=3, size=4, **settings):
        layers = nn.BatchNorm1d(8), nn.Dropout(0.3)
        trainer = small(
            wrap=ranks > 1,
            layers=layers,
            precision="fp16",
            checkpoints=Checkpoints(where, every=5, keep=None) if where else None,
            **settings,
        )
        trainer.callback = lambda record: trainer.step == stop and rank == 1 and trainer.stop()
        sampler = DistributedSampler(small.data, ranks, rank, seed=4)
        loader = DataLoader(small.data, size, sampler=sampler)
        trainer.fit(loader, loader, epochs=epochs, resume=resume)
        return trainer

    return train


@pytest.mark.parametrize(("size", "stop"), [(4, 15), (5, 8)])
def test_a_resumed_run_ends_as_the_undisturbed_one(run, tmp_path, size, stop):
    """In batches of 5, the last one of an epoch has 3; that is the first one after the break."""

    def all_at_once(rank):
        undisturbed = run(rank, where=None, size=size)
        broken = run(rank, stop=stop, size=size)
        resumed = run(rank, resume=True, size=size)
        early = run(rank, resume=f"{tmp_path}/step-0000000005.pt", where=None, size=size)
        equal = [
            all(
                torch.equal(value, each.model.state_dict()[name])
                for name, value in undisturbed.model.state_dict().items()
            )
            and each.history == undisturbed.history
            for each in (resumed, early)
        ]
        return broken.step, broken.stopped, equal, undisturbed.history, torch.rand(1).item()

    (step, why, equal, history, drawn), (_, other_why, other_equal, other_history, other) = values(
        run_ranks(all_at_once)
    )
    assert step == stop + 1  # rank 1 has asked for it, and it was said to all in the next one
    assert (why, other_why) == ("rank 1: trainer.stop() was called",) * 2
    assert equal == other_equal == [True, True]
    assert history == other_history
    assert drawn != other
    state = load_checkpoint(tmp_path / f"step-{step:010d}.pt")
    one, two = state["ranks"]
    assert not torch.equal(one["random"]["torch"], two["random"]["torch"])


@pytest.mark.parametrize(("before", "now", "size"), [(2, 1, 8), (2, 1, 4), (1, 2, 2), (2, 1, 3)])
@pytest.mark.filterwarnings("ignore")
def test_another_number_of_ranks_goes_on_behind_what_is_done(run, small, tmp_path, before, now, size):  # noqa: F811
    """The samples that are seen in the first epoch after the break are the ones that were left."""
    inputs = small.data.tensors[0]

    def go_on(rank):
        import warnings

        seen = []
        sampler = DistributedSampler(small.data, now, rank, seed=4)
        loader = DataLoader(small.data, size, sampler=sampler)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer = small(
                wrap=now > 1, precision="fp16", layers=(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3))
            )
            trainer.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
            trainer.fit(loader, epochs=1, resume=str(tmp_path / "step-0000000005.pt"))
        return torch.cat(seen), [str(each.message) for each in said], torch.rand(1).item()

    values(run_ranks(lambda rank: bool(run(rank, before, stop=6, epochs=1)), before))
    results = values(run_ranks(go_on, now))
    done = 5 * 4 * before
    sampler = DistributedSampler(small.data, 1, 0, seed=4)
    order = list(sampler)
    first = done // (size * now) * size * now
    rest = torch.cat([result[0] for result in results])
    wanted = inputs[order[first:]]
    assert sorted(rest.tolist()) == sorted(wanted.tolist())
    said = " ".join(results[0][1])
    assert ("come a second time" in said) == (first < done)
    assert ("a step had" in said) == (size * now != 4 * before)
    assert now == 1 or results[0][2] != results[1][2]


def test_at_an_epochs_end_any_number_of_ranks_goes_on(run, tmp_path):
    """From two ranks to three, where even the order need not be known; and the other way, into one process."""
    values(run_ranks(lambda rank: bool(run(rank, epochs=1))))

    def three(rank):
        import warnings

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer = run(rank, 3, resume=True, where=str(tmp_path), epochs=2)
        return (
            trainer.step,
            len(trainer.history.epochs),
            [str(each.message) for each in said],
            torch.rand(1).item(),
        )

    answers = values(run_ranks(three, 3))
    assert [answer[:2] for answer in answers] == [(20, 2)] * 3
    assert [len(answer[2]) for answer in answers] == [1, 0, 0]
    assert answers[0][2][0].startswith("a step had 8 samples on 2 ranks, and has 12 now: with accumulate or")
    assert len({answer[3] for answer in answers}) == 3
    with pytest.warns(UserWarning, match="a step had 12 samples on 3 ranks, and has 4 now"):
        alone = run(0, 1, resume=True, epochs=3)
    assert (alone.step, len(alone.history.epochs)) == (44, 3)


@pytest.mark.filterwarnings("ignore")
def test_in_one_epoch_from_two_ranks_to_three_to_one(small, tmp_path):  # noqa: F811
    """No sample is left out, though some come twice; and a checkpoint that is loaded and saved again means the same."""

    def part(rank, ranks, stop=None, resume=True):
        seen = []
        trainer = small(wrap=ranks > 1, checkpoints=tmp_path if resume is True else None)
        trainer.model.register_forward_pre_hook(lambda _, args: seen.extend(map(tuple, args[0].tolist())))
        trainer.callback = lambda record: trainer.step == stop and trainer.stop()
        loader = DataLoader(small.data, 4, sampler=DistributedSampler(small.data, ranks, rank, seed=4))
        trainer.fit(loader, resume=resume)
        return seen

    def parts(ranks, stop):
        return [each for own in values(run_ranks(part, ranks, ranks, stop)) for each in own]

    everything = {tuple(each) for each in small.data.tensors[0].tolist()}
    seen = parts(2, 6)
    again = small(wrap=False)
    again.load(Checkpoints(tmp_path).newest)
    again.save(tmp_path / "again.pt")
    assert set(seen + part(0, 1, resume=tmp_path / "again.pt")) == everything
    seen += parts(3, 8)
    assert len(seen) == 7 * 2 * 4 + 2 * 3 * 4
    assert len(set(seen)) == len(seen) - 8  # 56 samples were done, which are no whole number of steps of 12
    assert set(seen + part(0, 1)) == everything


def test_in_mid_epoch_an_order_that_is_not_known_is_refused(run, small, tmp_path):  # noqa: F811
    values(run_ranks(lambda rank: bool(run(rank, stop=6, epochs=1))))
    layers = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)
    shuffled = DataLoader(small.data, 4, shuffle=True)
    other_seed = DataLoader(small.data, 4, sampler=DistributedSampler(small.data, 1, 0, seed=5))
    for loader in (shuffled, other_seed, list(shuffled)):
        trainer = small(wrap=False, layers=layers, precision="fp16")
        with pytest.raises(
            CheckpointError, match="saved in the middle of an epoch by 2 ranks, and 1 are here"
        ):
            trainer.fit(loader, resume=str(tmp_path / "step-0000000005.pt"))


def test_buffers_of_their_own_and_a_compiled_model(small, tmp_path):  # noqa: F811
    """broadcast_buffers=False: each rank goes on with its own running averages. DDP inside torch.compile."""

    def all_at_once(rank):
        nn = torch.nn

        def make(checkpoints=None):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
            inner = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
            model = torch.compile(inner, backend="eager")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return small.trainer(
                model,
                nn.CrossEntropyLoss(),
                optimizer,
                precision="bf16",
                seed=2,
                checkpoints=checkpoints,
                progress=False,
            )

        batches = small.batches(rank, 2)
        undisturbed = make()
        undisturbed.fit(batches, epochs=2)
        broken = make(tmp_path)
        broken.callback = lambda _: broken.step == 3 and broken.stop()
        broken.fit(batches, epochs=2)
        resumed = make(tmp_path)
        resumed.fit(batches, epochs=2, resume=True)
        own, other = undisturbed.model.state_dict(), resumed.model.state_dict()
        return own, all(torch.equal(value, other[name]) for name, value in own.items()), broken.step

    (one, equal, step), (two, other_equal, _) = values(run_ranks(all_at_once))
    assert (equal, other_equal, step) == (True, True, 4)
    name = "_orig_mod.module.1.running_mean"
    assert not torch.equal(one[name], two[name])


def test_rank_0_alone_warns_of_what_all_have_found(small, tmp_path):  # noqa: F811
    def go_on(rank):
        trainer = small(precision="fp16")
        trainer.fit(small.batches(rank, 2))
        trainer.save(tmp_path / "fp16.pt")
        other = small()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.load(tmp_path / "fp16.pt")
            other.fit(small.batches(rank, 2), epochs=1)
        return [str(each.message).split(":")[0] for each in caught]

    first, second = values(run_ranks(go_on))
    assert len(first) == 2
    assert first[0].startswith("The checkpoint was saved with loss scale ")
    assert first[1] == "nothing to train"
    assert second == []
