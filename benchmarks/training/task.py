"""What every loop trains: a tiny model, so that a loop's own work is a large part of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.training.turns import Batch

PIXELS, WIDTH, CLASSES, IMAGES = 64, 128, 10, 64
CLIP_NORM = 1.0
INIT_SCALE = 2.0**10


@dataclass(frozen=True)
class Task:
    """A dtype of autocast and a device; `losses` gets the loss of every step."""

    dtype: torch.dtype
    device: str
    losses: list[float] = field(default_factory=list)

    @property
    def precision(self) -> str:
        """Return "fp16" or "bf16"."""
        return {torch.float16: "fp16", torch.bfloat16: "bf16"}[self.dtype]

    def model(self) -> nn.Module:
        """Return three linear layers, the same in every call, on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # the CPU's: nobody puts a GPU's back
            first, middle, last = (
                nn.Linear(*each) for each in ((PIXELS, WIDTH), (WIDTH, WIDTH), (WIDTH, CLASSES))
            )
        return nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), last)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AdamW with PyTorch's defaults."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a cosine over more steps than are made."""
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100_000)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a scaler that does nothing if the dtype is BF16."""
        return torch.amp.GradScaler(self.device, init_scale=INIT_SCALE, enabled=self.dtype == torch.float16)


def batches() -> list[Batch]:
    """Return 16 batches of random images (64, 64) in FP32 and their classes (64), on the CPU."""
    dice = torch.Generator().manual_seed(0)
    return [
        (torch.randn(IMAGES, PIXELS, generator=dice), torch.randint(CLASSES, (IMAGES,), generator=dice))
        for _ in range(16)
    ]


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of outputs (N, classes)."""
    return F.cross_entropy(outputs, targets)
