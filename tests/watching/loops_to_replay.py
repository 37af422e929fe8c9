"""A tiny training loop whose batches overflow on purpose, with a function that runs the batch at hand again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from amp_lab.watching.recording.events import Replayed
from amp_lab.watching.watch import Watch, watch


class Loop:
    """A tiny training loop; `factor(step)` multiplies the loss's target, so that batches overflow on purpose."""

    def __init__(
        self, *, scale: float = 1024.0, scaler: bool = True, dtype: torch.dtype = torch.float16
    ) -> None:
        dice = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 1)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scaler else None
        self.dtype = dtype
        self.data = [
            (torch.randn(16, 8, generator=dice), torch.randn(16, 1, generator=dice)) for _ in range(60)
        ]
        self.losses: list[float] = []
        self.again: list[float] = []
        self.at = 0
        self.x, self.y = self.data[0]

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            return F.mse_loss(self.model(self.x), self.y)

    def replay(self) -> torch.Tensor:
        loss = self.loss()
        self.again.append(float(loss.detach()))
        return loss

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss()
        self.losses.append(float(loss.detach()))
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(
        self, steps: int, spoil: Callable[[int, torch.Tensor, torch.Tensor], Any] = lambda *_: None
    ) -> None:
        for self.at in range(1, steps + 1):
            x, y = self.data[self.at - 1]
            self.x, self.y = x.clone(), y.clone()
            spoil(self.at, self.x, self.y)
            self.step()

    def watch(self, **settings: Any) -> Watch:
        return watch(self.model, self.optimizer, self.scaler, **{"replay": self.replay, **settings})


def times(factor: float, *steps: int) -> Callable[[int, torch.Tensor, torch.Tensor], None]:
    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if not steps or step in steps:
            y.mul_(factor)

    return spoil


def nan_in(*steps: int) -> Callable[[int, torch.Tensor, torch.Tensor], None]:
    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if step in steps:
            x[0, 0] = torch.nan

    return spoil


def overflows_in(loop: Loop, step: int) -> None:
    """Let a gradient be infinite in a step, whose loss is as any other: of dropout's random numbers one sees there."""
    weight = loop.model[-1].weight  # type: ignore[index]
    weight.register_hook(lambda gradient: gradient * torch.inf if loop.at == step else gradient)


def assert_again(loop: Loop, loss: float) -> None:
    """The loss was computed again, bit for bit; and in FP32 up to the rounding of FP16."""
    assert loop.again[0] == loss
    assert loop.again == pytest.approx([loss] * len(loop.again), rel=1e-3)


def noted(seen: Watch) -> dict[str, Any]:
    """Return all that a watch has noted but the replays, for a comparison."""
    run = seen.run
    events = [
        {name: told(value) for name, value in vars_of(each).items() if name != "number"} | {"is": type(each)}
        for each in run.events
        if not isinstance(each, Replayed)
    ]
    counts = {name: count for name, count in run.counts.items() if name != "Replayed"}
    others = [run.steps, run.scales, run.skips, run.notes, run.schedulers, run.optimizers, len(run.underflow)]
    return {"events": events, "counts": counts, "others": others, "kept": run.kept_steps}


def vars_of(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in type(event).__dataclass_fields__}


def told(value: Any) -> Any:
    return repr(value)  # NaN is like NaN there
