"""Small training loops that tests of rules run for real, and what the rules of one family said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from amp_lab.watching.report import Report
from amp_lab.watching.rules.rule import RULES
from amp_lab.watching.watch import watch

HUGE = 3000.0  # a target: the gradients overflow FP16 at scales of 256 and more


class Training:
    """A tiny model, its optimizer and scaler, and batches; `overflows` are the steps, from 1, that overflow at 1024."""

    def __init__(
        self,
        steps: int = 8,
        overflows: tuple[int, ...] = (),
        *,
        kind: type[torch.optim.Optimizer] = torch.optim.SGD,
        scale: float = 1024.0,
        growth_interval: int = 2000,
        dtype: torch.dtype = torch.float16,
        **settings: Any,
    ) -> None:
        dice = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = kind(self.model.parameters(), **{"lr": 0.01, **settings})  # type: ignore[arg-type]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
        self.dtype = dtype
        self.data = []
        for step in range(1, steps + 1):
            x, y = torch.randn(16, 8, generator=dice), torch.randn(16, 1, generator=dice)
            if step in overflows:
                y[0] = HUGE
            self.data.append((x, y))

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """The first half of a step."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype):
            loss = nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()

    def step(self) -> bool:
        """The second half; returns whether the step was taken."""
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def steps(self) -> Iterator[bool]:
        """Take all steps; yields after each whether it was taken."""
        for x, y in self.data:
            self.backward(x, y)
            yield self.step()


def report_of(training: Training, loop: Callable[[Training], object]) -> Report:
    """Run a loop under the watch; what it raises is passed over."""
    seen = watch(training.model, training.optimizer, training.scaler)
    try:
        with seen:
            loop(training)
    except Exception as error:
        print("the loop raised", repr(error))
    return seen.report()


def said_by(family: str | tuple[str, ...], report: Report) -> list[str]:
    """Return the ids of what the rules of these modules found, roots or not."""
    families = (family,) if isinstance(family, str) else family
    return [each.id for each in report.all if RULES[each.id].look.__module__.rpartition(".")[2] in families]
