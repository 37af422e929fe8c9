"""The loop that people write, with everything on that `amp_lab.Trainer` has on here."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from benchmarks.training.task import CLIP_NORM, Task, loss_of
from benchmarks.training.turns import Batch


class Row(NamedTuple):
    """What is noted of one step."""

    step: int
    loss: float
    lr: float
    scale: float
    grad_norm: float
    skipped: bool


def by_hand(task: Task, loader: DataLoader[Batch]) -> None:
    """Train for as long as there are batches."""
    model = task.model().to(task.device)
    optimizer = task.optimizer(model)
    scheduler, scaler = task.scheduler(optimizer), task.scaler()
    history: list[Row] = []
    model.train()
    for step, (inputs, targets) in enumerate(tqdm(loader)):
        inputs = inputs.to(task.device, non_blocking=True)
        targets = targets.to(task.device, non_blocking=True)
        with torch.autocast(task.device, task.dtype):
            loss = loss_of(model(inputs), targets)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss of step {step} is {value}")
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM).item()
        lr, scale = optimizer.param_groups[0]["lr"], scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        skipped = scaler.get_scale() < scale
        if not skipped:
            scheduler.step()
        history.append(Row(step, value, lr, scale, norm, skipped))
        task.losses.append(value)
