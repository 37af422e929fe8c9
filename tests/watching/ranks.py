"""Training loops of several processes: right ones as people write them, and what ends badly.

Each is a function of the rank and of `watch`, which it uses as anybody uses `amp_lab.watch`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import barrier
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from amp_lab.train.trainer import Trainer

STEPS = 6


def parts(rank: int, *layers: nn.Module) -> tuple[Any, Any, Any]:
    """Return a model in DDP, its optimizer, and a scaler; random numbers are the rank's own from now on."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8), *(layers or (nn.ReLU(),)), nn.Linear(8, 1))
    )
    torch.manual_seed(1 + rank)
    return (
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        torch.amp.GradScaler("cpu", init_scale=1024.0),
    )


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch; another one each time, and on each rank."""
    return torch.randn(16, 8), torch.randn(16, 1)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch, under autocast."""
    with torch.autocast("cpu", torch.float16):
        return F.mse_loss(model(x), y)


def step(model: Any, optimizer: Any, scaler: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """Make one step."""
    scaler.scale(loss_of(model, x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


# -- right


def plain(rank: int, watch: Any) -> None:
    """Dropout, and batch normalisation, whose buffers DDP sends."""
    model, optimizer, scaler = parts(rank, nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
    with watch(model, optimizer, scaler):
        for _ in range(STEPS):
            step(model, optimizer, scaler, *batch())


def overflows_on_one_rank(rank: int, watch: Any) -> None:
    """All ranks skip together."""
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for number in range(STEPS):
            x, y = batch()
            step(model, optimizer, scaler, x, y + 1e5 * (number == 2 and rank == 1))


def accumulates(rank: int, watch: Any) -> None:
    """All micro-batches but the last in no_sync, forward and backward."""
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for _ in range(STEPS):
            with model.no_sync():
                scaler.scale(loss_of(model, *batch()) / 2).backward()
            scaler.scale(loss_of(model, *batch()) / 2).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def watched_inside_of_ddp(rank: int, watch: Any) -> None:
    """The model that was wrapped, and buffers that DDP sends."""
    model, optimizer, scaler = parts(rank, nn.BatchNorm1d(8), nn.ReLU())
    with watch(model.module, optimizer, scaler):
        for number in range(STEPS):
            step(model, optimizer, scaler, *batch())
            if rank == 0 and number == 2:
                with torch.no_grad():
                    loss_of(model.module, *batch())


def joins_twice(rank: int, watch: Any) -> None:
    """Uneven inputs, in two epochs."""
    model, optimizer, _ = parts(rank)
    with watch(model, optimizer):
        for _ in range(2):
            with model.join():
                for _ in range(3 + rank):
                    F.mse_loss(model(batch()[0]), torch.zeros(16, 1)).backward()
                    optimizer.step()
                    optimizer.zero_grad()


def saves_and_evaluates_on_rank_0(rank: int, watch: Any) -> None:
    """The others wait in their next backward pass, for longer than a wait takes notice of."""
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler), tempfile.TemporaryDirectory() as folder:
        for number in range(STEPS):
            step(model, optimizer, scaler, *batch())
            if rank == 0 and number == 2:
                model.eval()
                with torch.no_grad():
                    loss_of(model.module, *batch())
                time.sleep(2.5)
                model.train()
                state = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                }
                torch.save(state, Path(folder) / "checkpoint.pt")


def agrees_to_stop(rank: int, watch: Any) -> None:
    """One rank wants to stop; all do."""
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for number in range(STEPS):
            step(model, optimizer, scaler, *batch())
            stop = torch.tensor(float(rank == 1 and number == 3))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop:
                break


def compresses(rank: int, watch: Any) -> None:
    """A communication hook of PyTorch's."""
    model, optimizer, scaler = parts(rank)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with watch(model, optimizer, scaler):
        for _ in range(STEPS):
            step(model, optimizer, scaler, *batch())


def samples(rank: int, watch: Any) -> None:
    """Epochs of a DataLoader; metrics added up over the ranks; a barrier after each epoch."""
    model, optimizer, scaler = parts(rank)
    data = TensorDataset(torch.arange(512.0).reshape(64, 8) / 512, torch.zeros(64, 1))
    sampler = DistributedSampler(data)
    with watch(model, optimizer, scaler):
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(data, batch_size=8, sampler=sampler):
                step(model, optimizer, scaler, x, y)
            total = torch.zeros(2)
            dist.all_reduce(total)
            dist.barrier()


def decorated(rank: int, watch: Any) -> None:
    """A function that is watched, and work of one rank between its calls."""
    model, optimizer, scaler = parts(rank)
    watched = watch(model, optimizer, scaler)(step)
    for number in range(STEPS):
        watched(model, optimizer, scaler, *batch())
        if rank == 0 and number == 2:
            time.sleep(2.0)


def watched_on_rank_0_only(rank: int, watch: Any) -> None:
    """The others tell nothing."""
    model, optimizer, scaler = parts(rank)
    seen = watch(model, optimizer, scaler)
    if rank == 0:
        seen.start()
    for _ in range(STEPS):
        step(model, optimizer, scaler, *batch())
    seen.stop()


def each_by_itself(rank: int, watch: Any) -> None:
    """A model of its own on each rank, which nobody averages."""
    torch.manual_seed(rank)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * (1 + rank))
    with watch(model, optimizer):
        for _ in range(STEPS + rank):
            F.mse_loss(model(batch()[0]), torch.zeros(16, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()


def averages_of_the_group(rank: int, watch: Any) -> None:
    """Collectives of a group of its own, of one rank only."""
    alone = dist.new_group([0])
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for _ in range(STEPS):
            step(model, optimizer, scaler, *batch())
            if rank == 0:
                dist.all_reduce(torch.ones(1), group=alone)


def trains_with_trainer(rank: int, watch: Any) -> None:
    """Trainer: windows of micro-batches, clipping, an evaluation after each epoch."""
    model, optimizer, _ = parts(rank, nn.Dropout(0.1))
    trainer = Trainer(
        model,
        F.mse_loss,
        optimizer,
        precision="fp16",
        device="cpu",
        accumulate=2,
        clip_norm=1.0,
        progress=False,
    )
    with watch(model, optimizer, trainer.scaler):
        trainer.fit([batch() for _ in range(8)], [batch()], epochs=2)


RIGHT: tuple[Callable[[int, Any], None], ...] = (
    plain,
    overflows_on_one_rank,
    accumulates,
    watched_inside_of_ddp,
    joins_twice,
    saves_and_evaluates_on_rank_0,
    agrees_to_stop,
    compresses,
    samples,
    decorated,
    watched_on_rank_0_only,
    each_by_itself,
    averages_of_the_group,
    trains_with_trainer,
)

# -- what ends badly


def _ends(rank: int, watch: Any, on_rank_1: Callable[[], object]) -> None:
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for number in range(STEPS):
            if rank == 1 and number == 2:
                on_rank_1()
            step(model, optimizer, scaler, *batch())


def raises(rank: int, watch: Any) -> None:
    """One rank ends with an error."""

    def fails() -> None:
        raise ValueError("no such file: batch 2")

    _ends(rank, watch, fails)


def raises_in_the_backward_pass(rank: int, watch: Any) -> None:
    """One rank ends with an error while the others wait in the same backward pass for its gradients.

    What is watched is the model inside of DDP.
    """

    def fails(gradient: torch.Tensor) -> None:
        raise RuntimeError("no memory is left")

    model, optimizer, scaler = parts(rank)
    with watch(model.module, optimizer, scaler):
        for number in range(STEPS):
            if rank == 1 and number == 2:
                next(model.parameters()).register_hook(fails)
            step(model, optimizer, scaler, *batch())


def dies(rank: int, watch: Any) -> None:
    """The process of one rank is killed."""
    _ends(rank, watch, lambda: os._exit(7))


def fewer_batches_then_a_barrier(rank: int, watch: Any) -> None:
    """One rank has left the loop, and waits behind it."""
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for _ in range(STEPS - rank):
            step(model, optimizer, scaler, *batch())
    dist.barrier()


def waits_unseen_on_rank_1_only(rank: int, watch: Any) -> None:
    """Rank 1 alone waits in a barrier, which was imported by its name before the watch began."""
    model, optimizer, scaler = parts(rank)
    with watch(model, optimizer, scaler):
        for number in range(STEPS):
            step(model, optimizer, scaler, *batch())
            if rank == 1 and number == 2:
                barrier()


def comes_late(rank: int, watch: Any) -> None:
    """Half of a timeout of 8 s is over when one rank comes; then all goes on."""
    _ends(rank, watch, lambda: time.sleep(6.0))
