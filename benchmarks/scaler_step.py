"""A step of DynamicLossScaler without overflow, against torch.amp.GradScaler, on 10, 100 and 1,000 tensors.

Two ratios for each count. *Alone*: scale(loss), step, update around an optimizer that does nothing, so that nothing
hides what the scaler itself takes; the bar, 1.1, is on this one. *With SGD*: the same around a plain SGD, as in a loop,
where a scaler is a small part of the time. Forward and backward are left out of both: they are the same on either side.

The tensors are small (256 numbers), so that Python's share, the one in which the two differ, is large. All gradients
are zero: dividing them again and again leaves them what they are, and no round meets subnormal numbers, which are slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_lab.scaling import DynamicLossScaler
from amp_lab.train.measure import Timings, compare
from benchmarks.finding import Finding, against

COUNTS = (10, 100, 1_000)
NUMBERS = 256
BAR = 1.1


class DoesNothing:
    """As much of an optimizer as a scaler asks for, without a step: what is left is the scaler's time."""

    def __init__(self, parameters: list[torch.Tensor], lr: float) -> None:
        self.param_groups = [{"params": parameters, "lr": lr}]

    def step(self) -> None:
        """Leave the weights alone."""


def measure(quick: bool) -> list[Finding]:
    """Return the ratios of medians over 1,000 rounds of each count (`quick`: 20)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds = 20 if quick else 1_000
    findings = []
    for kind, name, bar in ((DoesNothing, "alone", BAR), (torch.optim.SGD, "with SGD", None)):
        for count in COUNTS:
            timings = _compare(kind, count, device, rounds)
            print(f"{timings}\n")
            findings.append(against(timings, "DynamicLossScaler", f"{count:,} tensors, {name}", bar))
    return findings


def _compare(kind: type[DoesNothing | torch.optim.SGD], count: int, device: str, rounds: int) -> Timings:
    ways = {
        "torch.amp.GradScaler": _loop(torch.amp.GradScaler(device), kind, count, device),
        "DynamicLossScaler": _loop(DynamicLossScaler(), kind, count, device),
    }
    return compare(ways, baseline="torch.amp.GradScaler", rounds=rounds)


def _loop(
    scaler: Any, kind: type[DoesNothing | torch.optim.SGD], count: int, device: str
) -> Callable[[], None]:
    parameters = [torch.randn(NUMBERS, device=device) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = kind(parameters, lr=0.1)
    loss = torch.ones(
        (), device=device, requires_grad=True
    )  # so that scale() makes a graph, as it does in a loop

    def step() -> None:
        scaler.scale(loss)
        scaler.step(optimizer)
        scaler.update()

    return step
