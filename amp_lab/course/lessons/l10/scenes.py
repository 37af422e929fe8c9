"""The scenes of exercise 10.3: the steps of two ranks, and what is right in them, computed in one process."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from amp_lab.course.lessons.l10.averaging import averaged_step
from amp_lab.course.lessons.l10.comparing import State

RANKS = 2
SCALE, RATE = 2.0**10, 0.05
_IN, _HIDDEN, _OUT, _SAMPLES = 4, 6, 2, 4
_FAR = 6e4  # of an input whose weights are zero: the outputs do not feel it, the gradient overflows
_HAPPENS = {
    "c": "",
    "o": ", where a gradient overflows on rank 1, in its first micro-batch",
    "l": ", where a gradient overflows on rank 0, in its last micro-batch",
    "n": ", where the loss of rank 1's first micro-batch is NaN",
    "N": ", where the loss of rank 0's last micro-batch is NaN",
}

Batch = tuple[torch.Tensor, torch.Tensor]


class Scene(NamedTuple):
    """One training. `plan` has a letter for each step, `parts` is how many micro-batches a step has on each rank."""

    plan: str
    parts: int
    stale: float | None = None  # what `.grad` is full of at first

    def call(self, step: int) -> str:
        """Return in words which call of the learner's function this is."""
        each = f"{self.parts} micro-batch{'es' if self.parts > 1 else ''} on each rank"
        stale = f", `.grad` full of {self.stale:g} before" if self.stale is not None and step == 0 else ""
        return f"`ddp_step` in step {step + 1} ({each}{stale}{_HAPPENS[self.plan[step]]})"

    def clean(self, step: int) -> bool:
        """Return whether all gradients of a step are finite."""
        return self.plan[step] == "c"

    def window(self, step: int, rank: int) -> list[Batch]:
        """Make a rank's micro-batches of a step, counted from 0."""
        draw = torch.Generator().manual_seed(100 * step + 10 * self.parts + rank)
        window = [
            (torch.randn(_SAMPLES, _IN, generator=draw), torch.randn(_SAMPLES, _OUT, generator=draw))
            for _ in range(self.parts)
        ]
        for inputs, _ in window:
            inputs[:, -1] = 0
        place = {
            ("o", 1): (0, _FAR),
            ("l", 0): (-1, _FAR),
            ("n", 1): (0, torch.nan),
            ("N", 0): (-1, torch.nan),
        }
        if (self.plan[step], rank) in place:
            number, value = place[self.plan[step], rank]
            window[number][0][0, -1] = value
        return window


SCENES = (
    Scene("cc", 1),
    Scene("ccc", 3),
    Scene("cc", 2, stale=50.0),
    Scene("coclc", 3),
    Scene("lc", 1),
    Scene("cncN", 2),
)


def mean_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the error in FP32, as the loss functions of autocast do."""
    return (outputs.float() - targets).square().mean()


def make_model(scene: Scene) -> nn.Module:
    """Make the model of a scene, the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        model = nn.Sequential(nn.Linear(_IN, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _OUT))
    with torch.no_grad():
        model.get_submodule("0").get_parameter("weight")[:, -1] = 0
    for each in model.parameters():
        each.grad = None if scene.stale is None else torch.full_like(each, scene.stale)
    return model


class Faults(NamedTuple):
    """What somebody with a misconception does otherwise."""

    divisor: float | None = None  # of each loss; None: the number of micro-batches
    first: int = 0  # micro-batch that counts
    clears: bool = True
    unscales: bool = True  # and looks for infinities, as a scaler does


@functools.cache
def expected(scene: Scene, faults: Faults = Faults()) -> list[tuple[State, float]]:  # noqa: B008 (it cannot be changed)
    """Return weights and scale after each step, computed in one process from the batches of all ranks."""
    model = make_model(scene)
    scale, states = SCALE, []
    for number in range(len(scene.plan)):
        if faults.clears:
            model.zero_grad()
        factor = scale / (faults.divisor or scene.parts)
        windows = [scene.window(number, rank)[faults.first :] for rank in range(RANKS)]
        passes = [functools.partial(_backward, model, each, factor) for each in windows]
        scale = averaged_step(model, passes, scale, RATE, unscales=faults.unscales)
        states.append(({name: each.detach().clone() for name, each in model.named_parameters()}, scale))
    return states


def _backward(model: nn.Module, window: Sequence[Batch], factor: float) -> None:
    """Make all passes of one rank in one step."""
    for inputs, targets in window:
        with torch.autocast("cpu", torch.float16, cache_enabled=False):  # weights change in an outer region
            loss = mean_square(model(inputs), targets)
        (loss * factor).backward()  # type: ignore[no-untyped-call]
