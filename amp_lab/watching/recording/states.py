"""What the gradients of each optimizer are, followed from call to call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from amp_lab.watching.recording.events import Gradients

_EMPTY: Final = (Gradients.NONE, Gradients.ZERO)
# Looking at each gradient of a large model before and after each backward pass would cost; at so many it does not.
_SAMPLE: Final = 64

Marks = list[tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Factor:
    """What a loss was multiplied by.

    `scale` is None where only a device knows it; then `era`, the number of updates before, tells scales apart.
    """

    scaler: int
    scale: float | None
    era: int

    def same(self, other: Factor | None) -> bool:
        if other is None or self.scaler != other.scaler:
            return False
        if self.scale is None or other.scale is None or math.isnan(self.scale):
            return self.era == other.era
        return self.scale == other.scale


class States:
    """The state of the gradients of each optimizer, by its number.

    `parameters` are lists of each optimizer's parameters.
    """

    def __init__(self) -> None:
        self._parameters: list[list[torch.Tensor]] = []
        self._sample: list[list[torch.Tensor]] = []
        self._state: list[Gradients] = []
        self._factor: list[Factor | None] = []
        self._witness: list[int] = []  # a parameter that had a gradient
        self.taken: Factor | None = None  # of the loss that torch.autograd.grad was given last

    def add(self, parameters: list[torch.Tensor], begin: Gradients) -> None:
        """Begin to follow an optimizer. `begin` is what its gradients are, if it has any."""
        self._parameters.append([])
        self._sample.append([])
        self._state.append(Gradients.NONE)
        self._factor.append(None)
        self._witness.append(0)
        self.renew(len(self._state) - 1, parameters)
        if self._has_gradient(len(self._state) - 1):
            self._state[-1] = begin

    def renew(self, optimizer: int, parameters: list[torch.Tensor]) -> None:
        """Take new parameters for an optimizer's: it has got another group."""
        self._parameters[optimizer] = parameters
        every = -(-len(parameters) // _SAMPLE) or 1
        self._sample[optimizer] = parameters[::every]
        self._witness[optimizer] = 0

    def of(self, optimizer: int) -> Gradients:
        return self._state[optimizer]

    def all(self) -> tuple[Gradients, ...]:
        return tuple(self._state)

    def parameters(self, optimizer: int) -> list[torch.Tensor]:
        return self._parameters[optimizer]

    def with_gradient(self, optimizer: int) -> int:
        return sum([each.grad is not None for each in self._parameters[optimizer]])

    def are_none(self, optimizer: int) -> bool:
        """Return whether no parameter has a gradient."""
        return not self._has_gradient(optimizer)

    def see_by_hand(self, optimizer: int) -> bool:
        """Take note of what somebody did by hand, and return whether there is something.

        Every `.grad` was set to None: the state is NONE then. Or there are gradients that came by another way than
        backward: `parameter.grad = …`.
        """
        had, has = self._state[optimizer] is not Gradients.NONE, self._has_gradient(optimizer)
        if had and not has:
            self.set(optimizer, Gradients.NONE)
        elif has and not had:
            self.set(optimizer, Gradients.TRUE if self.taken is None else Gradients.SCALED, self.taken)
        return had != has

    def _has_gradient(self, optimizer: int) -> bool:
        parameters, witness = self._parameters[optimizer], self._witness[optimizer]
        if witness < len(parameters) and parameters[witness].grad is not None:
            return True
        for index, parameter in enumerate(parameters):
            if parameter.grad is not None:
                self._witness[optimizer] = index
                return True
        return False

    def marks(self) -> list[Marks | None]:
        """Return marks of the gradients of each optimizer, which differ where something writes; None: it has none."""
        return [
            None if state is Gradients.NONE else _marks(sample)
            for state, sample in zip(self._state, self._sample, strict=True)
        ]

    def written(self, before: Sequence[Marks | None]) -> tuple[int, ...]:
        """Return the optimizers to whose gradients something has written since."""
        return tuple([number for number, marks in enumerate(before) if self._is_written(number, marks)])

    def _is_written(self, optimizer: int, marks: Marks | None) -> bool:
        if marks is None:
            return self._has_gradient(optimizer)
        return any(map(_differs, self._sample[optimizer], marks))

    def set(self, optimizer: int, state: Gradients, factor: Factor | None = None) -> None:
        self._state[optimizer], self._factor[optimizer] = state, factor

    def add_gradients(self, optimizer: int, factor: Factor | None) -> None:
        """Follow a backward pass of a loss that was multiplied by a factor (None: it was not)."""
        new = Gradients.TRUE if factor is None else Gradients.SCALED
        before = self._state[optimizer]
        if before in _EMPTY:
            self.set(optimizer, new, factor)
        elif before is Gradients.SCALED and new is Gradients.SCALED:
            assert factor is not None
            if not factor.same(self._factor[optimizer]):
                self.set(optimizer, Gradients.MIXED)
        elif new is Gradients.SCALED or before is Gradients.SCALED:
            self.set(optimizer, Gradients.MIXED)

    def unscale(self, optimizer: int) -> None:
        """Follow a division by the scale."""
        if self._state[optimizer] in (Gradients.SCALED, Gradients.TRUE):
            self.set(optimizer, Gradients.UNSCALED)


def _differs(parameter: torch.Tensor, mark: tuple[int, int] | None) -> bool:
    gradient = parameter.grad
    return mark != (None if gradient is None else (id(gradient), gradient._version))


def _marks(parameters: Sequence[torch.Tensor]) -> Marks:
    gradients = [each.grad for each in parameters]
    return [None if each is None else (id(each), each._version) for each in gradients]
