"""A number that is still on its device, and is read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import torch

T = TypeVar("T", float, bool)

# There is no number: of a fake tensor, of one on the meta device, of one inside of vmap. This NaN itself, no other.
UNKNOWN: Final = float("nan")


class Later(Generic[T]):
    """A number or a truth value, given as such or as a tensor of one element, which is read when it is first asked for.

    To read a tensor of a GPU makes the host wait for it. While a loop is watched nothing is read; a report reads.
    The tensor must be one that nobody writes to: a copy, if somebody might.
    """

    __slots__ = ("_kind", "_tensor", "_value")

    def __init__(self, kind: Callable[[Any], T], value: T | torch.Tensor) -> None:
        self._kind: Callable[[Any], T] = kind
        self._tensor: torch.Tensor | None = None
        self._value: T | None = None
        if isinstance(value, torch.Tensor):
            self._tensor = value
        else:
            self._value = kind(value)

    @property
    def value(self) -> T:
        """The number; the host waits for it at the first time."""
        if self._value is None:
            assert self._tensor is not None
            value: T = self._kind(self._tensor.item())
            self._value, self._tensor = value, None
            return value
        return self._value

    @property
    def is_unknown(self) -> bool:
        """Whether there is no number to read, here or on a device: `value` is NaN then, or a guess."""
        return self._value is UNKNOWN

    @property
    def known(self) -> bool:
        """Whether it can be read without waiting for a device."""
        return self._tensor is None or self._tensor.device.type == "cpu"

    def __repr__(self) -> str:
        return f"Later({self.value!r})"
