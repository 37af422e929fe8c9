"""What goes wrong on one rank: all ranks do the same about it, or end with an error that names it. None hangs."""

import os

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.distributed.failures import RankFailed, RanksDiffer
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.trainer import NonFiniteLoss, Trainer
from tests.train.test_trainer_ddp import small, values  # noqa: F401


def test_a_bad_batch_on_one_rank(small):  # noqa: F811
    def all_policies(rank):
        batches = small.batches(rank, 2)
        if rank == 1:
            batches[2] = (torch.full_like(batches[2][0], torch.nan), batches[2][1])
        raised = small(clip_norm=1.0)
        with pytest.raises(NonFiniteLoss) as caught:
            raised.fit(batches)
        error = caught.value
        stopped = small(on_nonfinite="stop", precision="fp16")
        stopped.fit(batches, epochs=3)
        skipped = small(on_nonfinite="skip")
        skipped.fit(batches, epochs=2)
        return (
            (str(error), error.step, error.report and error.report.cause, error.batch is None),
            (stopped.stopped, stopped.step),
            ([each.skipped for each in skipped.history.steps], dict(skipped.model.state_dict())),
        )

    (raised, stopped, skipped), (other_raised, other_stopped, other_skipped) = values(run_ranks(all_policies))
    assert raised == (f"rank 1: {other_raised[0]}", 2, None, True)
    assert other_raised[1:] == (2, "nan-in-data", False)
    assert stopped == other_stopped == ("the loss of step 2, epoch 0, is nan", 3)
    assert skipped[0] == other_skipped[0] == ["", "", "loss", *[""] * 9] * 2
    assert all(torch.equal(weight, other_skipped[1][name]) for name, weight in skipped[1].items())


def test_ranks_that_differ_are_refused_everywhere(small, tmp_path):  # noqa: F811
    class Stream(torch.utils.data.IterableDataset):
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return iter(self.batches)

    def all_differences(rank):
        batches = small.batches(rank, 2)
        shorter = torch.utils.data.DataLoader(Stream(batches[: 12 - 3 * rank]), batch_size=None)

        def broken():
            if rank == 1:
                raise LookupError("no such file")
            yield from batches

        def split(trainer):
            def step(optimizer, own=trainer.scaler.step):
                if rank == 1 and trainer.step == 3:
                    next(iter(trainer.parameters)).grad[0] = torch.inf
                return own(optimizer)

            trainer.scaler.step = step
            return trainer

        def changed(change):
            trainer = small()
            if rank == 1:
                change(trainer)
            return trainer

        def made(scheduler=None):
            model = DistributedDataParallel(nn.Linear(6, 3))
            kind = torch.optim.Adam if rank == 1 and scheduler is None else torch.optim.SGD
            optimizer = kind(model.parameters(), 0.1)
            more = {"scheduler": scheduler(optimizer), "scheduler_every": "epoch"} if scheduler else {}
            return Trainer(model, nn.CrossEntropyLoss(), optimizer, progress=False, **more)

        def set_momentum(trainer):
            trainer.optimizer.param_groups[0]["betas"] = (0.5, 0.999)

        def set_weight(trainer):
            with torch.no_grad():
                trainer.model.module[2].bias[1] += 1e-3

        def set_rate(trainer):
            def halved(record):
                if trainer.step == 2:
                    trainer.optimizer.param_groups[0]["lr"] *= 0.5

            trainer.callback = halved

        def late(trainer):
            trainer.model.module[2].requires_grad_(True)
            return trainer

        def frozen():
            model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3).requires_grad_(False))
            torch.manual_seed(0)
            model = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            return Trainer(model, nn.CrossEntropyLoss(), optimizer, precision="fp32", progress=False)

        def graph():
            model = DistributedDataParallel(nn.Linear(6, 3), static_graph=True)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            Trainer(model, nn.CrossEntropyLoss(), optimizer, accumulate=2, progress=False)

        def dealt(*to, **settings):
            sampler = torch.utils.data.DistributedSampler(small.data, *to, **settings)
            return torch.utils.data.DataLoader(small.data, 4, sampler=sampler)

        own_loss = nn.Linear(3, 1) if rank < 2 else None
        taken = Checkpoints(tmp_path / "a")
        if rank == 0:
            taken.begin(0)
            taken.save({}, step=3)
            taken.end()
        tries = {
            "batches": lambda: small().fit(batches[: 12 - rank]),
            "epochs": lambda: small().fit(batches, epochs=1 + rank),
            "precision": lambda: small(precision="bf16" if rank else "fp32").fit(batches),
            "optimizer": lambda: made().fit(batches),
            "betas": lambda: changed(set_momentum).fit(batches),
            "schedule": lambda: made(lambda own: torch.optim.lr_scheduler.StepLR(own, 1 + rank)).fit(batches),
            "weight": lambda: changed(set_weight).fit(batches),
            "late": lambda: late(frozen()).fit(batches),
            "graph": graph,
            "rate": lambda: changed(set_rate).fit(batches),
            "shuffling": lambda: small().fit(dealt(seed=rank)),
            "part": lambda: small().fit(dealt(2, 0)),
            "stream": lambda: small().fit(shorter),
            "scale": lambda: split(small(precision="fp16")).fit(batches),
            "refused": lambda: small().fit([] if rank else batches),
            "dev": lambda: small().fit(batches, Stream(broken())),
            "occupied": lambda: small(checkpoints=tmp_path / "a").fit(batches),
            "full": lambda: small(checkpoints="/dev/null/x").fit(batches),
            "no checkpoint": lambda: small().load(tmp_path / "none.pt"),
            "loss": lambda: Trainer(
                DistributedDataParallel(nn.Linear(6, 3)),
                own_loss,
                torch.optim.SGD(own_loss.parameters(), 0.1),
            ),
        }
        found = {}
        for name, attempt in tries.items():
            try:
                attempt()
                found[name] = "nothing"
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
        trainer = small()
        trainer.fit(batches, batches if rank == 0 else [])  # a rank without a dev part
        return found, trainer.history

    (first, history), (second, other) = values(run_ranks(all_differences))
    assert history == other
    alike = {
        "batches": "RanksDiffer: the number of batches in train_loader (a DistributedSampler deals out equal parts) "
        "must be the same on all ranks, and is 12 on rank 0, 11 on rank 1",
        "epochs": "RanksDiffer: epochs must be the same on all ranks, and is 1 on rank 0, 2 on rank 1",
        "precision": "RanksDiffer: precision must be the same on all ranks, and is 'fp32' on rank 0, 'bf16' on rank 1",
        "optimizer": "RanksDiffer: the optimizer must be the same on all ranks, and is 'SGD' on rank 0, 'Adam' on",
        "betas": "RanksDiffer: betas of the optimizer must be the same on all ranks, and is [0.9, 0.999] on rank 0",
        "schedule": "RanksDiffer: step_size of the scheduler must be the same on all ranks, and is 1 on rank 0, 2 on",
        "weight": "RanksDiffer: the weight '2.bias' is another one on rank 1 than on rank 0",
        "late": "RanksDiffer: the weight '2.weight' is another one on rank 1 than on rank 0",
        "graph": "ValueError: accumulate=2 and DistributedDataParallel(static_graph=True) do not go together",
        "rate": "RanksDiffer: the learning rate is 0.1 on rank 0, 0.05 on rank 1 at step 2: a scheduler or a callback",
        "shuffling": "RanksDiffer: the DistributedSampler of train_loader must be the same on all ranks, and is {",
        "stream": "RanksDiffer: rank 1 has no more batches after 9 of this epoch",
        "scale": "RanksDiffer: the loss scale is 65536 on rank 0, 32768 on rank 1 at step 4",
        "loss": "ValueError: loss_fn has weights of its own",
    }
    for name, start in alike.items():
        assert first[name].startswith(start)
        assert first[name] == second[name]
    ends = "RankFailed: rank {} cannot go on, so this one ends, too: "
    for name, start in {
        "refused": "ValueError: train_loader is empty",
        "dev": "LookupError: no such file",
        "part": "ValueError: the DistributedSampler of train_loader deals out to rank 0 of 2, and this is rank 1 of 2",
    }.items():
        assert second[name].startswith(start)
        assert first[name] == ends.format(1) + second[name]
    for name, part in {
        "occupied": "another run",
        "full": "not saved",
        "no checkpoint": "no such file",
    }.items():
        assert part in first[name]
        assert second[name] == ends.format(0) + first[name]


@pytest.mark.parametrize("where", ["loader", "callback", "model", "killed"])
def test_a_rank_that_leaves_in_the_middle_ends_the_others(small, where):  # noqa: F811
    def leave(rank):
        def explode():
            if where == "killed":
                os._exit(3)
            raise torch.OutOfMemoryError("no memory") if where == "model" else LookupError("lost")

        trainer = small(layers=(nn.Identity(),))

        def at(place):
            if where == place and rank == 1 and trainer.step == 3:
                explode()

        def in_the_model(*_):
            at("model")

        trainer.model.module[1].register_forward_hook(in_the_model)
        trainer.callback = lambda _: at("callback")

        def batches():
            for batch in small.batches(rank, 2):
                at("loader")
                at("killed")
                yield batch

        class Loader:
            def __len__(self):
                return 12

            def __iter__(self):
                return batches()

        trainer.fit(Loader())

    first, second = run_ranks(leave, grace=20)
    if where == "killed":
        assert "RankFailed: another rank does not answer: it has been killed, or" in first.error, first
        return
    kind = "OutOfMemory: no memory" if where == "model" else "LookupError: lost"
    assert first.error.endswith(f"RankFailed: rank 1 has left, so this one ends, too: {kind}"), first
    assert second.ended == "raised"
    assert kind in second.traceback


def test_a_model_without_ddp_in_a_group_is_warned_of(small):  # noqa: F811
    def plain(rank):
        with pytest.warns(UserWarning, match=r"2 processes .* Trainer\(DistributedDataParallel\(model\)"):
            trainer = small(wrap=False)
        return trainer.ranks.size

    assert values(run_ranks(plain)) == [1, 1]
    assert issubclass(RankFailed, RuntimeError)
    assert issubclass(RanksDiffer, RuntimeError)


def test_a_loader_whose_length_is_wrong(small):  # noqa: F811
    def lie(rank):
        class Loader(list):
            def __len__(self):
                return 12

        small().fit(Loader(small.batches(rank, 2)[: 12 - 3 * rank]))

    first, second = run_ranks(lie, grace=20)
    assert second.error.startswith(
        "ValueError: train_loader has said that it has 12 batches, and gave 9: the other"
    )
    assert first.error.endswith(f"RankFailed: rank 1 has left, so this one ends, too: {second.error}")


def test_running_averages_that_a_bad_batch_has_spoilt(small):  # noqa: F811
    """On rank 1, DDP puts rank 0's in their place: the run can go on. On rank 0, they would spoil all the others."""

    def skip(rank):
        layers = (nn.BatchNorm1d(8),)
        good, bad = small.batches(rank, 2), small.batches(rank, 2)
        bad[2] = (torch.full_like(bad[2][0], torch.nan), bad[2][1])
        trainer = small(layers=layers, on_nonfinite="skip")
        trainer.callback = lambda record: trainer.step == 12 and rank == 0 and trainer.stop()
        trainer.fit(bad if rank == 1 else good)
        assert trainer.stopped is None
        with pytest.raises(NonFiniteLoss, match="running_mean' is not finite") as caught:
            small(layers=(nn.BatchNorm1d(8),), on_nonfinite="skip").fit(bad if rank == 0 else good)
        return [each.skipped for each in trainer.history.steps], str(caught.value).partition(" is")[0]

    first, second = values(run_ranks(skip))
    assert first == (["", "", "loss", *[""] * 9], "the loss of step 2, epoch 0,")
    assert second == (first[0], "rank 0: the loss of step 2, epoch 0,")


def test_a_parameter_that_one_rank_does_not_use(small):  # noqa: F811
    """The other rank waits in DDP's all-reduce of that gradient; left alone, both wait until the timeout."""

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.used = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2))), True

        def forward(self, x):
            return self.inner(x) if self.used else x

    def train(rank, on, **options):
        trainer = small(layers=(branch := Branch(),), wrap=False)
        wrapped = DistributedDataParallel(trainer.model, **options)
        trainer = Trainer(wrapped, nn.CrossEntropyLoss(), trainer.optimizer, precision="fp32", progress=False)

        def leave_out(_):
            branch.used = not (rank in on and trainer.step == 2)

        trainer.callback = leave_out
        trainer.fit(small.batches(rank, 2)[:4])
        return trainer.step

    def some_are_right(rank):
        return train(rank, [], static_graph=True), train(rank, [1], find_unused_parameters=True)

    assert values(run_ranks(some_are_right)) == [(4, 4), (4, 4)]
    first, second = run_ranks(lambda rank: train(rank, [1]), grace=20)
    said = (
        "RuntimeError: rank 1 has no gradient of 1.inner.0.weight, 1.inner.0.bias, 1.inner.1.weight and 1 more after "
        "the backward pass of step 2, and DistributedDataParallel waits for every parameter on every rank"
    )
    assert second.error.startswith(said)
    assert f"RankFailed: rank 1 has left, so this one ends, too: {said}" in first.error
    for rank, each in enumerate(run_ranks(lambda rank: train(rank, [0, 1]), grace=20)):
        assert each.error.startswith(f"RuntimeError: rank {rank} has no gradient of 1.inner.0.weight")
