"""Metrics for a Trainer: functions of a batch's outputs, in FP32, and its target."""

from __future__ import annotations

import torch


def accuracy(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of right answers, a scalar FP32 tensor from 0 to 1.

    Args:
        outputs: a score for each class, of shape `(N, classes)` or, with a class for each place, `(N, classes, ...)`.
        target: the right classes, whole numbers of shape `(N,)` or `(N, ...)`.

    Raises:
        ValueError: if the shapes do not belong together.
    """
    if outputs.ndim < 2 or outputs.shape[:1] + outputs.shape[2:] != target.shape:
        raise ValueError(
            f"accuracy needs scores (N, classes, ...) and classes (N, ...), not {tuple(outputs.shape)} and "
            f"{tuple(target.shape)}: write a metric of your own, a function of outputs and target"
        )
    return (outputs.argmax(dim=1) == target).float().mean()
