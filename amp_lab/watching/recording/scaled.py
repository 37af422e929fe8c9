"""Which losses were made by scaler.scale, or computed from one that was."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.states import Factor

# How many losses are remembered: those of a long accumulation that are scaled before the first is used.
_REMEMBERED: Final = 256
# How far to look back in a graph: from (scale(a) + scale(b)) / 4 it is three steps. Each node costs a microsecond.
_NODES: Final = 16
FEW: Final = 4
_DEEP: Final = 4096  # in a sum, where a part has to be told from the others
_SUMS: Final = 3  # so many are looked at
_MEAN: Final = 1  # how PyTorch's loss functions save reduction="mean"


class Making(NamedTuple):
    """How a loss was made.

    Attributes:
        divided_by: the number by which the last operation has divided: 4.0 for `loss / 4` and `loss * 0.25`.
        averaged: whether the last operation was a mean, for certain.
        made_by: its name, as autograd calls it: "MseLossBackward0".
        cast: whether it was cast to another dtype afterwards.
    """

    divided_by: float | None
    averaged: bool
    made_by: str
    cast: bool = False


@dataclass(frozen=True, slots=True)
class ScaledLoss:
    """What is known of a loss that was scaled. `factor` is None if its scaler is disabled."""

    scaler: int
    scale: Later[float]
    factor: Factor | None
    making: Making


class ScaledLosses:
    """Remembers what scale() returned.

    A mark on the graph's node, in its public `metadata`, finds a loss that was computed from a scaled one.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[int, tuple[weakref.ref[torch.Tensor], int]] = OrderedDict()
        self._next = 0
        self._by_id: OrderedDict[int, tuple[weakref.ref[torch.Tensor], ScaledLoss]] = OrderedDict()
        self._key = f"amp_lab.watch {id(self)}"
        self._sums = 0
        self.any = False
        self.sent: ScaledLoss | None = None  # the one that a backward pass was made of last

    def remember(self, result: torch.Tensor, loss: ScaledLoss) -> None:
        self._by_id[id(result)] = weakref.ref(result), loss
        while len(self._by_id) > _REMEMBERED:
            self._by_id.popitem(last=False)
        if result.grad_fn is not None:
            node: Any = result.grad_fn
            node.metadata[self._key] = loss
        self.any = True

    def number(self, tensor: torch.Tensor) -> int:
        """Return a number that no other tensor has; an `id` may be given to another when one is gone."""
        found = self._numbers.get(id(tensor))
        if found is not None and found[0]() is tensor:
            return found[1]
        self._next += 1
        self._numbers[id(tensor)] = weakref.ref(tensor), self._next
        while len(self._numbers) > 2 * _REMEMBERED:
            self._numbers.popitem(last=False)
        return self._next

    def exactly(self, tensor: torch.Tensor) -> ScaledLoss | None:
        """Return what is known of a tensor, if scale() has returned it."""
        found = self._by_id.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def behind(self, tensor: torch.Tensor, most: int = _NODES) -> ScaledLoss | None:
        """Return what is known of a scaled loss that a tensor was computed from, in a few operations.

        Args:
            most: how many operations to look at.
        """
        if not self.any or tensor.grad_fn is None:
            return None
        nodes: deque[Any] = deque([tensor.grad_fn])
        for _ in range(most):
            if not nodes:
                return None
            node = nodes.popleft()
            found: ScaledLoss | None = node.metadata.get(self._key)
            if found is not None:
                return found
            nodes.extend([each for each, _ in node.next_functions if each is not None])
        return None

    def has_unscaled_part(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a sum of something with a scaled loss behind it, and of something without.

        A part that is multiplied by 0, as for the sake of DistributedDataParallel, does not count. The first sums of a
        run are looked at, and no more: a regulariser has many nodes.
        """
        if tensor.grad_fn is None or self._sums >= _SUMS:
            return False
        self._sums += 1
        nodes: list[Any] = [tensor.grad_fn]
        for _ in range(_NODES):
            if not nodes:
                return False
            node = nodes.pop()
            if self._key in node.metadata:
                continue
            parts = [each for each, _ in node.next_functions if each is not None and not _is_zero(each)]
            scaled = [each for each in parts if self._has_scaled(each)]
            if node.name().startswith(("AddBackward", "SubBackward")) and len(scaled) < len(parts):
                return True
            nodes += scaled
        return False

    def _has_scaled(self, node: Any) -> bool:
        """Return whether a scaled loss lies behind a node, as far as that is soon seen."""
        nodes, seen = deque([node]), {node}
        while nodes and len(seen) < _DEEP:
            if self._key in (node := nodes.popleft()).metadata:
                return True
            below = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= below
            nodes.extend(below)
        return bool(nodes)  # who knows


NOT_MADE: Final = Making(None, False, "")


def making(tensor: torch.Tensor) -> Making:
    """Return how a loss was made, as its last operation that is not a cast tells."""
    node: Any = tensor.grad_fn
    name = "" if node is None else node.name()
    cast = name.startswith("ToCopyBackward")
    while name.startswith("ToCopyBackward"):
        node = node.next_functions[0][0]
        name = "" if node is None else node.name()
    averaged = name.startswith("MeanBackward") or getattr(node, "_saved_reduction", None) == _MEAN
    return Making(_divided_by(node, name), averaged, name, cast)


def _is_zero(node: Any) -> bool:
    """Return whether something is multiplied by 0."""
    with contextlib.suppress(Exception):  # what autograd has saved is its own affair
        other = node._saved_other if node.name().startswith("MulBackward") else None
        return isinstance(other, torch.Tensor) and other.device.type == "cpu" and not other.tolist()
    return False


def _divided_by(node: Any, name: str) -> float | None:
    if not name.startswith(("DivBackward", "MulBackward")):
        return None
    with contextlib.suppress(Exception):  # what autograd has saved is its own affair
        other = node._saved_other
        # A Python number has become a tensor on the CPU.
        if isinstance(other, torch.Tensor) and other.device.type == "cpu" and other.dim() == 0:
            number = _first(other)
            return number if name.startswith("Div") else 1 / number
    return None


def _first(number: torch.Tensor) -> float:
    value: Any = number.tolist()  # no operator, unlike item()
    return float(value)
