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
    """Make one step of the mean loss over all samples of a window.

    A window is the list of its micro-batches. Of several ranks, each has a window of
    its own, and the mean is over the samples of all of them.
    """
    optimizer, scaler, together = trainer.optimizer, trainer.scaler, trainer.together
    sizes = [samples_in(batch) for batch in window]
    whole, lr = together.whole(sum(sizes)), float(optimizer.param_groups[0]["lr"])

    optimizer.zero_grad(set_to_none=True)
    shares = [size / whole for size in sizes]
    last = [False] * (len(window) - 1) + [True]
    parts = zip(window, shares, last, strict=True)
    losses = [backward(trainer, *part) for part in parts]
    if trainer.step == 0:
        check_gradients(trainer.parameters)
    trainer.ranks.check_gradients(trainer.step)
    loss, samples = together.mean(trainer, losses, sizes)
    together.put_right(trainer.parameters, samples)
    scale = scaler.get_scale()
    lost = not math.isfinite(loss)
    norm = None if lost else clip(trainer)
    record = StepRecord(trainer.epoch, trainer.step, loss, lr, scale, norm, "", samples)

    # No scale cures such a loss; and without a scaler, nobody else looks at gradients.
    if lost or (norm is not None and not (math.isfinite(norm) or scaler.is_enabled())):
        return refused(trainer, window, losses, record)

    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < scale:  # an overflow: the scaler has skipped the step
        return overflowed(trainer, window, losses, record)
    trainer.schedule.stepped()
    return record


def backward(trainer: Trainer, batch: Any, share: float, last: bool) -> torch.Tensor:
    """Add a micro-batch's part to the gradients; return its loss.

    `share`: of the window's samples. `last`: of the window, where DDP averages over the
    ranks, once.
    """
    batch = to_device(batch, trainer.device)
    with trainer.ranks.accumulating(last):
        with trainer.autocast:
            loss = forward(trainer.model, trainer.loss_fn, batch).loss
        # A mean over few samples counts less: so a window that is not full is right.
        part = loss if share == 1 else loss * share
        trainer.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def clip(trainer: Trainer) -> float | None:
    """Unscale and clip the gradients; return their norm before. None: no clipping."""
    if trainer.clip_norm is None:
        return None
    trainer.scaler.unscale_(trainer.optimizer)
    return clip_grad_norm_(trainer.parameters, trainer.clip_norm).item()
