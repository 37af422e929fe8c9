"""Other people's trainers on the same task, with the same features on as far as they have them.

Each function imports its package itself: they are in the extra `bench`, and take seconds to import.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from benchmarks.training.by_hand import Row
from benchmarks.training.task import CLIP_NORM, INIT_SCALE, Task, loss_of
from benchmarks.training.turns import Batch

Run = Callable[[Task, DataLoader[Batch]], None]


class Peer(NamedTuple):
    """A way to train with somebody else's package."""

    name: str
    package: str
    run: Run

    def why_not(self, dtype: torch.dtype, device: str) -> str:
        """Return why it cannot do a task; the empty string if it can."""
        if self.run is with_accelerate and dtype == torch.float16 and device == "cpu":
            return "asked for FP16 on a CPU, it computes in FP32 and says nothing"
        try:
            metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return (
                f"{self.package} is not installed; it is in the extra `bench`: pip install 'amp-lab[bench]'"
            )
        return ""

    def __str__(self) -> str:
        return f"{self.name} {metadata.version(self.package)}"


def peers() -> list[Peer]:
    """Return all peers, installed or not."""
    return [
        Peer("accelerate", "accelerate", with_accelerate),
        Peer("Lightning Fabric", "lightning", with_fabric),
        Peer("Lightning Trainer", "lightning", with_lightning),
    ]


def with_accelerate(task: Task, loader: DataLoader[Batch]) -> None:
    """Train by the loop of accelerate's documentation: it casts, scales, clips, and moves the batches."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import GradScalerKwargs

    AcceleratorState._reset_state(
        reset_partial_state=True
    )  # else the first precision of a process is its only one
    accelerator = Accelerator(
        mixed_precision=task.precision,
        cpu=task.device == "cpu",
        kwargs_handlers=[GradScalerKwargs(init_scale=INIT_SCALE)],
    )
    model = task.model()
    optimizer = task.optimizer(model)
    scheduler = task.scheduler(optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    history: list[Row] = []
    model.train()
    for step, (inputs, targets) in enumerate(tqdm(loader)):
        loss = loss_of(model(inputs), targets)
        value = _finite(loss, step)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM).item()
        lr = optimizer.param_groups[0]["lr"]
        scale = accelerator.scaler.get_scale() if accelerator.scaler else 1.0
        optimizer.step()
        scheduler.step()  # looks itself whether the step was skipped
        optimizer.zero_grad()
        history.append(Row(step, value, lr, scale, norm, optimizer.step_was_skipped))
        task.losses.append(value)


def with_fabric(task: Task, loader: DataLoader[Batch]) -> None:
    """Train by a loop with Lightning Fabric: it casts, scales, clips, and moves the batches."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    half = task.dtype == torch.float16
    scaler = task.scaler() if half else None
    precision = MixedPrecision("16-mixed" if half else "bf16-mixed", task.device, scaler=scaler)
    fabric = Fabric(accelerator=task.device, devices=1, plugins=[precision])
    model = task.model()
    plain = task.optimizer(model)
    scheduler = task.scheduler(plain)
    model, optimizer = fabric.setup(model, plain)
    loader = fabric.setup_dataloaders(loader)
    history: list[Row] = []
    model.train()
    for step, (inputs, targets) in enumerate(tqdm(loader)):
        loss = loss_of(model(inputs), targets)
        value = _finite(loss, step)
        fabric.backward(loss)
        # By default it raises where the scaler would skip the step.
        clipped = fabric.clip_gradients(model, optimizer, max_norm=CLIP_NORM, error_if_nonfinite=False)
        norm = clipped.item()
        lr, scale = plain.param_groups[0]["lr"], scaler.get_scale() if scaler else 1.0
        optimizer.step()
        optimizer.zero_grad()
        skipped = scaler is not None and scaler.get_scale() < scale
        if not skipped:
            scheduler.step()
        history.append(Row(step, value, lr, scale, norm, skipped))
        task.losses.append(value)


def with_lightning(task: Task, loader: DataLoader[Batch]) -> None:
    """Train by Lightning's Trainer, with its logger, checkpoints and summary off, which are on by default."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import TQDMProgressBar
    from lightning.pytorch.plugins import MixedPrecision

    half = task.dtype == torch.float16
    scaler = task.scaler() if half else None
    precision = MixedPrecision("16-mixed" if half else "bf16-mixed", task.device, scaler=scaler)
    trainer = Trainer(
        accelerator=task.device,
        devices=1,
        plugins=[precision],
        max_epochs=1,
        gradient_clip_val=CLIP_NORM,
        # By default it draws its bar in every step; we draw ours ten times a second at most.
        callbacks=[TQDMProgressBar(refresh_rate=100)],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(_module(task, scaler), loader)


def _module(task: Task, scaler: torch.amp.GradScaler | None) -> Any:
    """Return the task as a LightningModule. Its history has no norm of the gradients: Lightning does not tell it."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]  # not installed everywhere
        def __init__(self) -> None:
            super().__init__()
            self.model: nn.Module = task.model()
            self.history: list[Row] = []

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = task.optimizer(self.model)
            scheduler = {"scheduler": task.scheduler(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

        def training_step(self, batch: Batch, step: int) -> torch.Tensor:
            inputs, targets = batch
            loss = loss_of(self.model(inputs), targets)
            value = _finite(loss, step)
            lr = self.optimizers(use_pl_optimizer=False).param_groups[0]["lr"]
            scale = scaler.get_scale() if scaler else 1.0
            self.history.append(Row(step, value, lr, scale, math.nan, False))
            task.losses.append(value)
            return loss

    return Module()


def _finite(loss: torch.Tensor, step: int) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(f"the loss of step {step} is {value}")
    return value
