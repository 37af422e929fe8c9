"""Ranks on GPUs: NCCL with a GPU for each rank (two where the machine has two), and two ranks on one GPU over gloo."""

import math
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train import ddp
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.distributed.compression import compress_gradients
from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.failures import RankFailed
from amp_lab.train.distributed.joining import joined
from amp_lab.train.distributed.launching import Launch
from amp_lab.train.distributed.payload import count_payload
from amp_lab.train.distributed.several import SeveralRanks
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.trainer import Trainer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: ranks are not tried on GPUs, nor NCCL"
    ),
]

GPUS = torch.cuda.device_count()
EACH_ITS_GPU = [
    1,
    pytest.param(
        2, marks=pytest.mark.skipif(GPUS < 2, reason="one GPU: NCCL is not tried between two ranks")
    ),
]


def on_gpus(ranks, function, *args):
    """Call `function(*args)` on so many ranks, in the environment of a launcher; return what each gave."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return values(run_ranks(_placed, ranks, ranks, store.port, function, args, timeout=90))


def _placed(rank, ranks, port, function, args):
    dist.destroy_process_group()  # that of run_ranks is gloo's
    os.environ |= Launch(rank, ranks, rank, ranks, "127.0.0.1", port, hosted=True).environment()
    return function(*args)


def values(outcomes):
    for each in outcomes:
        assert each.ended == "returned", f"rank {each.rank}: {each.error}\n{each.traceback}\n{each.output}"
    return [each.value for each in outcomes]


def small(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(device)


@pytest.mark.parametrize("ranks", EACH_ITS_GPU)
def test_the_script_trains_and_goes_on(ranks, tmp_path):
    options = ["--precision", "fp16", "--compress", "fp16", "--device", "cuda", "--quiet"]
    options += ["--checkpoints", str(tmp_path)]

    def twice():
        assert dist.is_nccl_available()
        return ddp.main([*options, "--epochs", "2"]), ddp.main([*options, "--epochs", "3"])

    assert on_gpus(ranks, twice) == [(0, 0)] * ranks
    state = Checkpoints(tmp_path).load()
    epochs = state["history"]["epochs"]
    assert len(epochs) == 3
    parts = state.get("ranks") or [state]
    assert len(parts) == ranks
    assert all(part["random"]["cuda"] for part in parts), "dropout on a GPU would not go on"
    assert {each.device.type for each in state["model"].values()} == {"cpu"}


@pytest.mark.parametrize("ranks", EACH_ITS_GPU)
def test_what_ranks_ask_each_other_goes_by_nccl(ranks):
    """`Trainer` asks nobody where a process is alone; here also one rank sends what it has to say through NCCL."""

    def asks():
        with joined(60, device="cuda") as group:
            assert dist.get_backend() == "nccl"
            assert torch.cuda.current_device() == group.device.index == group.local_rank
            wrapped = DistributedDataParallel(small(group.device))
            told = SeveralRanks(wrapped, group.device)
            buffers = [wrapped.module[1].running_mean, wrapped.module[1].num_batches_tracked]
            buffers[0].fill_(group.rank)
            told.same_buffers()
            assert (buffers[0] == 0).all()
            assert told.rows([0.1 + group.rank, math.pi]) == [[0.1 + each, math.pi] for each in range(ranks)]
            assert told.any(group.rank == ranks - 1)
            state = {"weight": torch.full((3,), group.rank), "text": "ü"}
            gathered = told.gather(state)
            assert [int(each["weight"][0]) for each in gathered] == list(range(ranks))
            assert {each["weight"].device.type for each in gathered} == {"cpu"}
            assert told.share(group.rank) == 0
            try:
                told.first_does(lambda: 1 / 0)
            except (ZeroDivisionError, RankFailed) as error:
                return type(error).__name__

    assert on_gpus(ranks, asks) == ["ZeroDivisionError"] + ["RankFailed"] * (ranks - 1)


@pytest.mark.parametrize("ranks", EACH_ITS_GPU)
def test_compressed_gradients_on_nccl(ranks):
    """The mean is right, beyond FP16's range too; two bytes an element go over the wire; infinity is not lost."""

    def compressed(dtype):
        torch.manual_seed(0)
        device = torch.device("cuda", torch.cuda.current_device())
        wrapped = DistributedDataParallel(nn.Linear(1000, 1, bias=False).to(device))
        compress_gradients(wrapped, dtype)
        own = torch.rand(ranks, 1000, generator=torch.Generator().manual_seed(1)) * 1e6 + 1e5
        inputs = own[dist.get_rank()].to(device)
        found = []
        for factor in (1.0, math.inf):
            wrapped.zero_grad()
            with count_payload(wrapped) as payload:
                (wrapped(inputs) * factor).backward()
            found.append(wrapped.module.weight.grad.cpu().flatten())
        error = ((found[0] - own.mean(0)).abs() / own.mean(0)).max()
        return float(error), payload.bytes, bool(found[1].isfinite().any())

    def all_kinds():
        with joined(60, device="cuda"):
            return {dtype: compressed(dtype) for dtype in ("none", "fp16", "bf16")}

    for told in on_gpus(ranks, all_kinds):
        assert told["none"][0] < 1e-6
        assert told["fp16"][0] < 2 * ranks * 2**-11
        assert told["bf16"][0] < 2 * ranks * 2**-8
        assert [told[kind][1] for kind in ("none", "fp16", "bf16")] == [4000, 2004, 2000]
        assert not any(finite for _, _, finite in told.values())


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    # One GPU, made visible by name, may be that of one process among others: then only the roll call can tell.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)  # without the variable, there may be more
    for name, value in Launch(0, GPUS + 1, 0, GPUS + 1, "127.0.0.1", 1, hosted=True).environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="each needs one of its own"), joined(5, device="cuda"):
        pass


def test_two_ranks_on_one_gpu_over_gloo():
    """What NCCL refuses, gloo does: the weights are the same on both, and those of one process with both parts."""
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(5))
    targets = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(6))

    def train(rank, wrap=True, accumulate=1):
        device = torch.device("cuda", 0)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        model = DistributedDataParallel(model) if wrap else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(
            model,
            nn.CrossEntropyLoss(),
            optimizer,
            precision="fp32",
            accumulate=accumulate,
            seed=0,
            progress=False,
        )
        parts = (rank,) if wrap else (0, 1)
        batches = [
            (inputs[at + part : at + 16 : 2], targets[at + part : at + 16 : 2])
            for at in range(0, 64, 16)
            for part in parts
        ]
        history = trainer.fit(batches, batches, epochs=4)
        assert trainer.device == device
        return history.losses, [each.detach().cpu() for each in trainer.parameters]

    (losses, first), (others, second) = values(run_ranks(train, 2, timeout=90))
    alone, expected = train(0, wrap=False, accumulate=2)
    assert losses == others
    assert losses == pytest.approx(alone, rel=1e-5)
    for one, other, right in zip(first, second, expected, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, right)
