"""Small training runs in which somebody's loss scaler is watched: what exercises 5.3 and 5.4 put a scaler through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

LEARNING_RATE, MOMENTUM, DECAY = (
    0.25,
    0.5,
    0.125,
)  # momentum and decay move weights even where gradients are zero
SLOPES = ((0.5, -2.0, 3.0), (0.75, -1.5))  # of the loss: the true gradients of a clean iteration


class Run(NamedTuple):
    """What was seen of a run, iteration by iteration: the scale after it, and which optimizers made their step."""

    scales: tuple[float, ...]
    steps: tuple[tuple[bool, ...], ...]


class Net:
    """Weights with an optimizer: three groups, of which one parameter in the first and one in the last are used."""

    def __init__(self) -> None:
        self.used = [torch.nn.Parameter(torch.ones(len(slopes))) for slopes in SLOPES]
        self.unused = torch.nn.Parameter(torch.ones(2))
        alone = torch.nn.Parameter(torch.ones(1))  # has a group to itself
        groups = [{"params": each} for each in ([self.used[0], self.unused], [alone], [self.used[1]])]
        self.optimizer = torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=DECAY)
        self.optimizer.register_step_post_hook(self._count)
        self.steps = 0

    def _count(self, *_: object) -> None:
        self.steps += 1

    def loss(self, slopes: Sequence[Sequence[float]] = SLOPES) -> torch.Tensor:
        """Return a loss whose gradients are `slopes`, whatever the weights are."""
        terms = [(weight * torch.tensor(each)).sum() for weight, each in zip(self.used, slopes, strict=True)]
        return terms[0] + terms[1]

    def grads(self) -> tuple[torch.Tensor | None, ...]:
        """Return copies of the gradients, those of the used weights first."""
        return tuple(
            None if each.grad is None else each.grad.detach().clone() for each in (*self.used, self.unused)
        )

    def weights(self) -> tuple[torch.Tensor, ...]:
        """Return copies of the used weights."""
        return tuple(each.detach().clone() for each in self.used)


def slopes_with(value: float, parameter: int = 0, place: int = 0) -> list[list[float]]:
    """Return the slopes of a clean iteration, but for one that is `value`."""
    slopes = [list(each) for each in SLOPES]
    slopes[parameter][place] = value
    return slopes


def scale_of(scaler: Any) -> float:
    """Return a scaler's scale by letting it scale 1."""
    return float(scaler.scale(torch.ones((), dtype=torch.float32)))


def listed(scales: Sequence[float]) -> str:
    """Return scales as a sentence shows them: powers of two are written out."""
    return ", ".join(f"{scale:.10g}" for scale in scales)


def play(scaler: Any, pattern: Sequence[str], *, unscale: bool = False) -> Run:
    """Let `scaler` go through a run with one optimizer for each letter: `c` for clean, `o` for overflow.

    The pattern `["co", "cc"]` means two optimizers in two iterations, and the second of them overflows in the first.
    A point in place of a letter leaves that optimizer out of the iteration. After a capital, `C` or `O`, it is
    unscaled, and its step is left out. With `unscale` all of them are unscaled before the first makes its step.
    """
    nets = [Net() for _ in pattern[0]]
    scales, steps = [], []
    for letters in pattern:
        before = [net.steps for net in nets]
        active = [(net, letter) for net, letter in zip(nets, letters, strict=True) if letter != "."]
        _backward(scaler, nets, letters)
        for net, letter in active:
            if unscale or letter.isupper():
                scaler.unscale_(net.optimizer)
        for net, letter in active:
            if letter.islower():
                scaler.step(net.optimizer)
        scaler.update()
        steps.append(tuple(net.steps > count for net, count in zip(nets, before, strict=True)))
        scales.append(scale_of(scaler))
    return Run(tuple(scales), tuple(steps))


def _backward(scaler: Any, nets: Sequence[Net], letters: str) -> None:
    for net, letter in zip(nets, letters, strict=True):
        net.optimizer.zero_grad()
        if letter != ".":
            slopes = slopes_with(math.inf) if letter in "oO" else SLOPES
            scaler.scale(net.loss(slopes)).backward()
