"""The objects that are watched, each with its number: those handed over, and those met on the way."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

# A loop may make a scaler in each step. The facts of so many are kept; the ones after share the last number.
MOST: Final = 100


class Numbered:
    """Objects of one kind, by number. Those met on the way are not kept alive."""

    def __init__(self, kind: str, known: dict[int, tuple[str, int]]) -> None:
        self._kind, self._known = kind, known
        # By id: what returns the object, or None when it is gone; and its number.
        self._entries: dict[int, tuple[Any, int]] = {}
        self.count = 0

    def add(self, value: Any, number: int | None = None) -> int:
        """Give an object a number: the next one, unless it is told."""
        if number is None:
            number = min(self.count, MOST - 1)
            self.count += 1
        key = id(value)
        self._entries[key] = self._reference(value), number
        self._known[key] = self._kind, number
        return number

    def _reference(self, value: Any) -> Any:
        key = id(value)

        def forget(_: object) -> None:
            self._entries.pop(key, None)
            self._known.pop(key, None)

        try:
            return weakref.ref(value, forget)
        except TypeError:  # of a class with slots: it is kept alive, so that its id stays its own
            return lambda: value

    def get(self, value: Any) -> int | None:
        """Return an object's number; None if it has none."""
        entry = self._entries.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def __len__(self) -> int:
        return min(self.count, MOST)


class Known:
    """All watched objects. `by_id` says what an object is: {140…: ("optimizer", 1)}."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[str, int]] = {}
        self.models = Numbered("model", self.by_id)
        self.optimizers = Numbered("optimizer", self.by_id)
        self.scalers = Numbered("scaler", self.by_id)
        self.schedulers = Numbered("scheduler", self.by_id)


class Owners:
    """Which optimizer has which parameter."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._groups: list[int] = []  # how many there were

    def add(self, optimizer: Any) -> list[torch.Tensor]:
        """Take an optimizer in, the next number, and return its parameters."""
        self._groups.append(0)
        return self.read(len(self._groups) - 1, optimizer)

    def read(self, number: int, optimizer: Any) -> list[torch.Tensor]:
        """Read an optimizer's parameters, anew if it has got more."""
        parameters = parameters_of(optimizer)
        for each in parameters:
            self._of.setdefault(id(each), number)
        self._groups[number] = len(optimizer.param_groups)
        return parameters

    def has_grown(self, number: int, optimizer: Any) -> bool:
        return self._groups[number] != len(optimizer.param_groups)

    def of(self, parameter: object) -> int | None:
        return self._of.get(id(parameter))

    def of_all(self, parameters: Sequence[object]) -> tuple[int, ...]:
        """Return the optimizers that have some of these parameters, in order."""
        of = self._of
        if len(self._groups) == 1:  # as soon as one is known, there is no other
            return (0,) if any(id(each) in of for each in parameters) else ()
        return tuple(sorted({of[key] for each in parameters if (key := id(each)) in of}))


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [
        each for group in optimizer.param_groups for each in group["params"] if isinstance(each, torch.Tensor)
    ]


def first_parameters(model: nn.Module) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the first and the last parameter that is trained, or else the first of all, twice."""
    every = list(model.parameters())
    trained = [each for each in every if each.requires_grad] or every[:1]
    return (trained[0], trained[-1]) if trained else (None, None)
