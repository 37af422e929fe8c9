"""A small model with its optimizer, scaler and data, for loops that are written out in tests of rules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.functional import mse_loss

import amp_lab
from amp_lab.watching.report import Report


class Bench:
    """What a loop needs. `overflow`: the batches, counted from 0, whose gradients overflow at every scale above 128."""

    def __init__(self, kind="SGD", dtype=torch.float16, enabled=True, steps=6, overflow=(), **settings):
        torch.manual_seed(0)
        self.model, self.other = nn.Linear(8, 2), nn.Linear(8, 2)
        make = getattr(torch.optim, kind)
        settings = {"lr": 0.01, **settings}
        self.optimizer = make(self.model.parameters(), **settings)
        self.optimizer_b = make(self.other.parameters(), **settings)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
        self.dtype = dtype
        self.batches = [(torch.randn(8, 8), torch.randn(8, 2)) for _ in range(steps)]
        for index in overflow:
            x, y = self.batches[index]
            self.batches[index] = x * 300, y

    def loss(self, x, y, model=None):
        with torch.autocast("cpu", dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            return mse_loss((model or self.model)(x), y)

    def batch(self, index=0):
        return self.batches[index % len(self.batches)]

    @property
    def losses(self) -> Iterator[torch.Tensor]:
        """The loss of each batch, one at a time."""
        return (self.loss(x, y) for x, y in self.batches)


def report(train: Callable[[Bench], object], bench: Bench | None = None, two: bool = False) -> Report:
    """Watch a loop, whatever it raises, and return the report."""
    bench = bench or Bench()
    models = [bench.model, bench.other] if two else bench.model
    optimizers = [bench.optimizer, bench.optimizer_b] if two else bench.optimizer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = amp_lab.watch(models, optimizers, bench.scaler)
        try:
            with seen:
                train(bench)
        except (RuntimeError, AssertionError):
            pass
        return seen.report()


def ids(train: Callable[[Bench], object], bench: Bench | None = None, two: bool = False) -> list[str]:
    """Return the root causes that are found in a loop."""
    return [each.id for each in report(train, bench, two).diagnoses]
