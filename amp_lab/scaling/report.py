"""What one step of an optimizer did: stepped or skipped, at which scale, and whose gradients overflowed."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from amp_lab.scaling.marks import Marks
from amp_lab.scaling.rule import shown
from amp_lab.scaling.unscaling import gradients, values_of


class Overflow(NamedTuple):
    """A parameter whose gradient was not finite.

    `name` is the one that the optimizer knows (give it `model.named_parameters()`), else group, place and shape;
    `infinite` and `nan` count entries of its gradient, and `size` is how many it has.
    """

    name: str
    infinite: int
    nan: int
    size: int

    def __str__(self) -> str:
        counts = [(self.infinite, "infinite"), (self.nan, "NaN")]
        shares = " and ".join(f"{count:,} {what}" for count, what in counts if count)
        return f"{self.name} ({shares}, of {self.size:,})"


class Search:
    """A search through an optimizer's gradients for those that are not finite, one by one.

    The counting is done at once, on the devices, since gradients do not last; the counts are read when asked for.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._labels: dict[torch.device, list[tuple[str, int]]] = {}
        counts: dict[torch.device, list[torch.Tensor]] = {}
        for number, place, parameter, gradient in gradients(optimizer):
            values = values_of(parameter, gradient).detach()
            counted = torch.stack([values.isinf().sum(), values.isnan().sum()])
            counts.setdefault(values.device, []).append(counted)
            label = label_of(optimizer, number, place)
            self._labels.setdefault(values.device, []).append((label, values.numel()))
        self._counts = {device: torch.stack(some) for device, some in counts.items()}
        self._overflowed: tuple[Overflow, ...] | None = None

    @property
    def overflowed(self) -> tuple[Overflow, ...]:
        if self._overflowed is None:
            self._overflowed = tuple(
                Overflow(label, infinite, nan, size)
                for device, counts in self._counts.items()
                for (label, size), (infinite, nan) in zip(self._labels[device], counts.tolist(), strict=True)
                if infinite or nan
            )
        return self._overflowed


def label_of(optimizer: torch.optim.Optimizer, number: int, place: int) -> str:
    """Return the name of a parameter: its own if the optimizer was given names, else where to find it."""
    group = optimizer.param_groups[number]
    names = group.get("param_names")
    if names:
        return str(names[place])
    return f"group {number}, parameter {place}, shape {tuple(group['params'][place].shape)}"


class Trace:
    """Where a fused optimizer's gradients can be searched, as long as they are those of this step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._marks = Marks(optimizer)

    def search(self) -> Search | None:
        """Search the gradients; None if it is too late."""
        optimizer = self._optimizer()
        return Search(optimizer) if optimizer is not None and self._marks.hold(optimizer) else None


class StepReport:
    """What one call of `scaler.step(optimizer)` did.

    After a fused optimizer the first question waits for the device, and the names of what overflowed are found when
    asked for: ask before the gradients are cleared or changed.
    """

    def __init__(
        self, scale: float | torch.Tensor, skipped: bool | torch.Tensor, search: Search | Trace | None
    ) -> None:
        self._scale = scale
        self._skipped = skipped
        self._search = search

    @property
    def scale(self) -> float:
        """The loss scale of this step."""
        if isinstance(self._scale, torch.Tensor):
            self._scale = float(self._scale.item())
        return self._scale

    @property
    def skipped(self) -> bool:
        """Whether the optimizer left the weights alone because a gradient was infinite or NaN."""
        if isinstance(self._skipped, torch.Tensor):
            self._skipped = self._skipped.item() > 0
        return self._skipped

    @property
    def stepped(self) -> bool:
        """Whether the optimizer made its step."""
        return not self.skipped

    @property
    def overflowed(self) -> tuple[Overflow, ...]:
        """The parameters whose gradients were not finite; empty after a step, or if it can no longer be said."""
        search = self._searched() if self.skipped else None
        return search.overflowed if search else ()

    def _searched(self) -> Search | None:
        if isinstance(self._search, Trace):
            self._search = self._search.search()
        return self._search

    def __str__(self) -> str:
        if self.stepped:
            return f"stepped at loss scale {shown(self.scale)}"
        names = self.overflowed
        start = f"skipped at loss scale {shown(self.scale)}: "
        if not names:
            return (
                start
                + "a gradient was infinite or NaN; which one was not asked while the gradients were there"
            )
        listed = "; ".join(str(name) for name in names[:5])
        more = f"; and {len(names) - 5:,} more" if len(names) > 5 else ""
        few = f"{len(names):,} parameter{'s' if len(names) > 1 else ''}"
        return f"{start}infinity or NaN in the gradients of {few}: {listed}{more}"

    def __repr__(self) -> str:
        return f"StepReport: {self}"
