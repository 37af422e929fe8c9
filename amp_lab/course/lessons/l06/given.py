"""What exercise 6.2 starts from: a block that autocast makes wrong, and slow, without an error."""

from __future__ import annotations

import torch
from torch import nn


class BrokenBlock(nn.Module):
    """relu(rms_norm(x) @ weight + bias), for x of shape (..., rows, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of `x`."""
        # Bring each row to a root mean square of 1.
        mean_square = (x * x).mean(dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean_square + 1e-6) * self.gain
        # Multiply in place, to save memory.
        rows = normed.flatten(0, -2)
        out = self.bias.repeat(len(rows), 1)
        out.addmm_(rows, self.weight)
        return torch.relu(out).view(x.shape)
