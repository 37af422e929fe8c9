"""The step of the DDP script, by hand and by `amp_lab.Trainer`: the same model, batches and features on each rank."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from amp_lab.train.models import digit_classifier
from amp_lab.train.trainer import Trainer
from benchmarks.training.by_hand import Row
from benchmarks.training.turns import Batch

IMAGES, PIXELS, CLASSES = 32, 64, 10  # as the script: 32 digits of 8 × 8 pixels on each rank
CLIP_NORM, LR = 1.0, 0.003
INIT_SCALE = 2.0**10


@dataclass(frozen=True)
class DdpTask:
    """A dtype of autocast, a rank, and micro-batches to a step; `losses` gets the mean loss of every step."""

    dtype: torch.dtype
    rank: int
    accumulate: int
    losses: list[float] = field(default_factory=list)

    def model(self) -> DistributedDataParallel:
        """Return the script's model. Without dropout: ways that take turns would draw each other's random numbers."""
        return DistributedDataParallel(digit_classifier())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the script's optimizer."""
        return torch.optim.AdamW(model.parameters(), LR)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a scaler that does nothing if the dtype is BF16."""
        return torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, enabled=self.dtype == torch.float16)


def batches(rank: int) -> list[Batch]:
    """Return 16 batches of random images (32, 64) in FP32 and their classes (32): others on every rank."""
    dice = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(IMAGES, PIXELS, generator=dice), torch.randint(CLASSES, (IMAGES,), generator=dice))
        for _ in range(16)
    ]


def by_hand(task: DdpTask, loader: DataLoader[Batch]) -> None:
    """Train for as long as there are batches, in the loop that people write."""
    model = task.model()
    optimizer, scaler, loss_fn = task.optimizer(model), task.scaler(), nn.CrossEntropyLoss()
    history: list[Row] = []
    losses: list[torch.Tensor] = []
    model.train()  # type: ignore[no-untyped-call]
    for number, (inputs, targets) in enumerate(tqdm(loader, disable=task.rank != 0), start=1):
        last = number % task.accumulate == 0
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast("cpu", task.dtype):
                loss = loss_fn(model(inputs), targets)
            torch.autograd.backward(scaler.scale(loss / task.accumulate))
        losses.append(loss.detach())
        if not last:
            continue
        value, stop = told(losses)
        if stop:
            break
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value} after {number} batches")
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM).item()
        lr, scale = optimizer.param_groups[0]["lr"], scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses = []
        history.append(Row(len(history), value, lr, scale, norm, scaler.get_scale() < scale))
        task.losses.append(value)


def told(losses: list[torch.Tensor], stop: bool = False) -> tuple[float, bool]:
    """Return the mean of all ranks' losses, and whether one of them wants to stop: one small all-reduce."""
    message = torch.tensor([sum(torch.stack(losses).tolist()), stop], dtype=torch.float64)
    dist.all_reduce(message)
    total, stops = message.tolist()
    return total / (len(losses) * dist.get_world_size()), stops > 0


def ours(task: DdpTask, loader: DataLoader[Batch]) -> None:
    """Train for as long as there are batches, with Trainer as the script uses it."""
    model = task.model()
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        task.optimizer(model),
        precision={torch.float16: "fp16", torch.bfloat16: "bf16"}[task.dtype],
        device="cpu",
        accumulate=task.accumulate,
        clip_norm=CLIP_NORM,
        scaler=task.scaler() if task.dtype == torch.float16 else None,
    )
    try:
        trainer.fit(loader, epochs=1)
    finally:
        task.losses.extend(trainer.history.losses)
