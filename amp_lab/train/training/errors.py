"""What a Trainer raises beside Python's own TypeError and ValueError."""

from __future__ import annotations

from typing import Any

import torch


class NonFiniteLoss(FloatingPointError):
    """A loss that no loss scale cures: it is NaN or infinite itself. The optimizer has not stepped.

    Weights, optimizer, scheduler and loss scale are as they were before the step; what the forward pass writes (the
    running averages of BatchNorm, random numbers) has gone on.

    Attributes:
        loss: the loss of the window, a float.
        batch: the micro-batch that it comes from, on the device; None if weights were found spoilt while saving, and
            on a rank whose batches are in order: then the message is that of the rank that it names.
        step, epoch: where that was, counted from 0.
        report: what `amp_lab.find_overflow` says of this batch; None where it could not run.
    """

    def __init__(
        self, message: str, *, loss: float, batch: Any, step: int, epoch: int, report: Any = None
    ) -> None:
        super().__init__(message)
        self.loss = loss
        self.batch = batch
        self.step = step
        self.epoch = epoch
        self.report = report


class OutOfMemory(torch.OutOfMemoryError):
    """The device has no memory left for a step; the message says what to try."""
