"""Unscaling and looking for infinities, written to be read. `unscaling.py` does it faster; a test compares them.

Every number of every gradient is touched twice, and each gradient is asked "are you finite?" on its own. On a GPU each
answer makes Python wait until all work before it is done.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


@torch.no_grad()
def unscale_gradients(parameters: Iterable[torch.Tensor], scale: float) -> bool:
    """Divide the gradients by the scale, in place, and return whether an infinity or NaN is among them.

    Args:
        parameters: FP32 parameters. Those whose `.grad` is None had no part in the loss.
        scale: what the loss was multiplied by, a number that FP32 holds.

    Multiplying by the inverse is cheaper than dividing. The inverse is taken in FP64 and rounded to FP32 once; for a
    power of two it is exact, and so is the gradient, unless it becomes subnormal.
    """
    inverse = torch.tensor(scale, dtype=torch.float64).reciprocal().float()
    overflowed = False
    for parameter in parameters:
        if parameter.grad is None:
            continue
        # A sparse gradient stores the rows that were used; all others are zero.
        values = parameter.grad._values() if parameter.grad.is_sparse else parameter.grad
        if not values.isfinite().all():
            overflowed = True
        values.mul_(inverse)
    return overflowed
