"""What every run of a batch that is measured needs."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from amp_lab.watching.replaying.batches import Batch


def casts_of(run: Batch) -> contextlib.AbstractContextManager[None]:
    """Let autocast cast as on the device that is asked about. Without autocast nothing is: to ask takes seconds."""
    return run.policy() if run.region else contextlib.nullcontext()


def region(run: Batch) -> torch.autocast:
    """Return the autocast region that forward and loss are computed in; it does nothing for FP32."""
    return torch.autocast(run.runs_on, run.dtype, enabled=run.region)


def scalar(loss: Any) -> torch.Tensor:
    """Return a loss that backward can begin at.

    Raises:
        TypeError, ValueError: for any other.
    """
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"the loss must be a tensor, not a {type(loss).__name__}: does loss_fn return it?")
    if loss.numel() != 1:
        raise ValueError(
            f"the loss must be one number, not of shape {tuple(loss.shape)}: take its mean() or sum()"
        )
    if not loss.requires_grad:
        raise ValueError(
            "nothing is trained: the loss depends on no parameter with requires_grad=True (is it computed under "
            "no_grad, or detached?)"
        )
    return loss


def dtype_or_none(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return autocast's dtype; None, without autocast, for FP32."""
    return None if dtype is torch.float32 else dtype
