"""What a closer look is, what it is told, and what it may ask."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from amp_lab.autocast.records import Source
from amp_lab.watching.recording.events import Event, Gradients, ZeroGrad
from amp_lab.watching.recording.later import Later
from amp_lab.watching.underflow.sample import Samples


class Host(Protocol):
    """What looks need of the recorder."""

    models: Sequence[nn.Module]
    optimizers: Sequence[Any]
    samples: Samples

    @property
    def compiled(self) -> bool:
        """Whether one of the models is compiled."""

    @property
    def step(self) -> int:
        """The number of the step that runs, or has just ended."""

    def states(self) -> tuple[Gradients, ...]:
        """Return what the gradients of each optimizer are, as far as the calls tell."""

    def scale(self) -> float | torch.Tensor | None:
        """Return the present loss scale; None without an enabled scaler."""

    def frame(self) -> FrameType | None:
        """Return the innermost frame of the user's code."""

    def here(self) -> Source | None:
        """Return the user's line."""

    def note(self, event: Event) -> None:
        """Note an event; its number, step, place and names are filled in."""

    def unscaled(self, optimizer: int) -> None:
        """The gradients of an optimizer were found to be divided by the scale, by hand."""

    def owner(self, parameter: torch.Tensor) -> int | None:
        """Return the number of the optimizer that has a parameter."""


class Bench:
    """What a look works with: the host's answers in the form that looks use."""

    def __init__(self, host: Host):
        self._host = host
        self.models, self.optimizers = host.models, host.optimizers
        self.samples = host.samples
        self.listening = True

    @property
    def compiled(self) -> bool:
        return self._host.compiled

    @property
    def step(self) -> int:
        return self._host.step

    def frame(self) -> FrameType | None:
        return self._host.frame()

    def state(self, optimizer: int) -> Gradients:
        """Return what the gradients of an optimizer are."""
        return self._host.states()[optimizer]

    def scale(self) -> Later[float] | None:
        """Return the present scale, as a number that stays what it is."""
        scale = self._host.scale()
        if scale is None:
            return None
        return Later(float, scale.detach().clone() if isinstance(scale, torch.Tensor) else scale)

    def owner(self, parameter: torch.Tensor) -> int | None:
        """Return the number of the optimizer that has a parameter."""
        return self._host.owner(parameter)

    def parameters(self, optimizer: int) -> list[torch.Tensor]:
        """Return the parameters of an optimizer, in its order."""
        return [each for group in self.optimizers[optimizer].param_groups for each in group["params"]]

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Note an event at the user's line."""
        self._host.note(kind(**fields))

    def zeroed_by_hand(self, optimizer: int) -> None:
        """The gradients of an optimizer were set to zeros by hand."""
        before = self.state(optimizer)
        if before not in (Gradients.ZERO, Gradients.NONE):
            self.emit(ZeroGrad, optimizers=(optimizer,), by="hand", set_to_none=False, before=(before,))

    def unscaled_by_hand(self, optimizer: int) -> None:
        """The gradients of an optimizer were divided by the scale by hand."""
        self._host.unscaled(optimizer)


class Look:
    """Is told what happens in the thread that is watched. All methods do nothing by default."""

    def __init__(self, bench: Bench):
        self.bench = bench

    def start(self) -> None:
        """The watch begins."""

    def begin_step(self, step: int) -> None:
        """Something of a new step was seen."""

    def forward(self) -> None:
        """A watched model is called, or was called just now."""

    def before_backward(self) -> None:
        """backward() was called and has not run yet."""

    def after_backward(self) -> None:
        """backward() has run."""

    def before_use(self, optimizer: int) -> None:
        """The gradients of an optimizer are about to be unscaled, or used for a step."""

    def after_step(self, optimizer: int) -> None:
        """An optimizer was asked to step, and that is done."""

    def step_ended(self, skipped: bool) -> None:
        """The step that runs has ended. `skipped`: without an optimizer, as far as is known without waiting."""

    def stop(self) -> None:
        """The watch ends: leave nothing behind."""
