"""Weights and buffers that are not finite: no step can come back from there, and no checkpoint should hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer

_AVERAGES: Final = ("running_mean", "running_var")  # of BatchNorm: what a forward pass writes
_BACK: Final = "Go back to a checkpoint from before"


def spoilt_anywhere(trainer: Trainer) -> str:
    """Say which weight or running average is not finite on any rank, and how that can be; "" if all are finite.

    Ranks get the buffers of rank 0 here, as DDP would give them before its next step.
    """
    trainer.ranks.same_buffers()
    return trainer.together.first_said(spoilt_weight(trainer) or spoilt_buffer(trainer))


def spoilt_weight(trainer: Trainer) -> str:
    """Say which weight is not finite on this rank, and how that can be; "" if all are finite."""
    for name, weight in trainer.model.named_parameters():
        if weight.requires_grad and not _all_finite(weight):
            return f"The weight {name!r} is not finite: {_who_spoilt(trainer)}"
    return ""


def spoilt_buffer(trainer: Trainer) -> str:
    """Say which running average is not finite on this rank, or which buffer is NaN; "" if none is.

    Other buffers may hold infinities from the start, such as the mask of an attention; but nobody means a NaN.
    """
    for name, buffer in trainer.model.named_buffers():
        if buffer.isnan().any() or (name.endswith(_AVERAGES) and not _all_finite(buffer)):
            who = "the forward pass of this batch, or of one before, spoilt it"
            return f"The buffer {name!r} is not finite: {who}. {_BACK}."
    return ""


def _who_spoilt(trainer: Trainer) -> str:
    """Name the last step: usually the very next loss is NaN. (A weight may not have been in use since.)"""
    if not trainer.step:
        return "it was so before the first step. Make the model anew."
    cause = f"step {trainer.step - 1:,}, or one before it, spoilt it"
    if trainer.clip_norm is not None or trainer.scaler.is_enabled():
        return f"{cause}, though the gradients were finite: is the learning rate too large? {_BACK}."
    return (
        f"{cause}: its loss was finite, but its gradients were not, and without clip_norm nobody looked at them (or "
        f"the learning rate is far too large). {_BACK}, with Trainer(..., clip_norm=math.inf), which looks at the "
        "gradients before each step."
    )


def _all_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())
