"""Small batches to train on."""

from __future__ import annotations

import torch

Batch = tuple[torch.Tensor, torch.Tensor]


def regression(
    batches: int = 6, size: int = 8, inputs: int = 6, outputs: int = 1, *, large: tuple[int, ...] = ()
) -> list[Batch]:
    """Return (x, y) pairs of order 1; in the batches `large`, from 0, a target is 20,000.

    With `mse_loss` and one output, such a target overflows an FP16 gradient at a loss scale of 16 or more; the loss
    stays finite.
    """
    dice = torch.Generator().manual_seed(7)
    pairs = []
    for number in range(batches):
        x = torch.randn(size, inputs, generator=dice)
        y = torch.randn(size, outputs, generator=dice)
        if number in large:
            y[0] = 20_000.0
        pairs.append((x, y))
    return pairs


def labelled(batches: int = 6, size: int = 8, inputs: int = 6, classes: int = 3) -> list[Batch]:
    """Return (x, labels) pairs."""
    dice = torch.Generator().manual_seed(8)
    return [
        (
            torch.randn(size, inputs, generator=dice),
            torch.randint(0, classes, (size,), generator=dice),
        )
        for _ in range(batches)
    ]
