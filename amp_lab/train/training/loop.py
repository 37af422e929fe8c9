"""The step of a Trainer: from a window of micro-batches to new weights. (Lesson 09 reads it line by line.)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad_norm_

from amp_lab.train.training.batches import forward, samples_in, to_device
from amp_lab.train.training.calls import check_gradients
from amp_lab.train.training.history import StepRecord
from amp_lab.train.training.nonfinite import overflowed, refused

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer


def train_step(trainer: Trainer, window: Sequence[Any]) -> StepRecord:
    """Make one step of the mean loss over all samples of a window, the list of its micro-batches."""
    optimizer, scaler = trainer.optimizer, trainer.scaler
    sizes = [samples_in(batch) for batch in window]
    samples, lr = sum(sizes), float(optimizer.param_groups[0]["lr"])

    optimizer.zero_grad(set_to_none=True)
    parts = zip(window, sizes, strict=True)
    losses = [backward(trainer, batch, size / samples) for batch, size in parts]
    if trainer.step == 0:
        check_gradients(trainer.parameters)
    loss = mean(losses, sizes)
    scale = scaler.get_scale()
    lost = not math.isfinite(loss)
    norm = None if lost else clip(trainer)
    record = StepRecord(trainer.epoch, trainer.step, loss, lr, scale, norm, "", samples)

    # No scale cures such a loss; and without a scaler, nobody else looks at the gradients.
    if lost or (norm is not None and not (math.isfinite(norm) or scaler.is_enabled())):
        return refused(trainer, window, losses, record)

    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < scale:  # an overflow: the scaler has skipped the step
        return overflowed(trainer, window, losses, record)
    trainer.schedule.stepped()
    return record


def backward(trainer: Trainer, batch: Any, share: float) -> torch.Tensor:
    """Add a micro-batch's part to the gradients; return its loss. `share`: of the window's samples."""
    batch = to_device(batch, trainer.device)
    with trainer.autocast:
        loss = forward(trainer.model, trainer.loss_fn, batch).loss
    # A mean over few samples counts less: so a last window that is not full is right, too.
    part = loss if share == 1 else loss * share
    trainer.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def mean(losses: list[torch.Tensor], sizes: Sequence[int]) -> float:
    """Return the mean loss over the samples. It waits for the GPU, once."""
    if len(losses) == 1:
        return losses[0].item()
    values: list[float] = torch.stack(losses).tolist()
    return sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)


def clip(trainer: Trainer) -> float | None:
    """Unscale and clip the gradients; return their norm before. None if there is no clipping."""
    if trainer.clip_norm is None:
        return None
    trainer.scaler.unscale_(trainer.optimizer)
    return clip_grad_norm_(trainer.parameters, trainer.clip_norm).item()
