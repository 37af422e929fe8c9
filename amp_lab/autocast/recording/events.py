"""What a recording keeps while a model runs: kernels, and the events that they are part of.

A *kernel* is one ATen operator at the bottom, where the work is done. An *event* is what it is done for: an operator
that autocast saw, a composite operator (`linear`, `reshape`: made of others, above autograd), a node of autograd's
graph in a backward pass, what autograd's engine does after a node that is the user's code, or else that one kernel
alone. Events contain events, so a recording is a forest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch

from amp_lab.autocast.records import Phase, Source

EventKind = Literal["autocast", "composite", "node", "engine", "kernel"]
Runner = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Seen(NamedTuple):
    """A tensor. `maker` is the number of the kernel that made it or wrote into it last.

    `identity` is its `id`: the same for one tensor that is seen several times while it lives. `look` is what a
    listener says about its numbers at that moment.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str | None
    maker: int | None
    identity: int
    look: Any = None


class Listener(Protocol):
    """Is told what a recording meets, with the tensors themselves."""

    def look(self, tensor: torch.Tensor) -> Any:
        """Return what is to be kept about a tensor's numbers; it must be hashable. Nothing is recorded meanwhile."""

    def run(self, kernel: Kernel, work: Runner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a kernel: call `work` with its operator and its arguments, once, and return what that returns."""


class Place(NamedTuple):
    """Where something ran. `forward` is the number of the kernel whose gradient is computed there."""

    phase: Phase
    module: str
    module_type: str
    call: int
    source: Source | None
    within: str | None
    forward: int | None


class SeenCast(NamedTuple):
    """A cast by autocast of the argument at `position` among an event's tensors."""

    position: int
    dtype: torch.dtype
    copied: int


@dataclass(slots=True)
class Kernel:
    """One ATen operator. `sequence` is the number that autograd's next node would get; `is_cast`: by autocast."""

    number: int
    operator: Any
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...] = ()
    sequence: int = 0
    is_view: bool = False
    is_cast: bool = False

    @property
    def name(self) -> str:
        return str(self.operator)


@dataclass(slots=True)
class Event:
    """What kernels run for. `name` is an ATen overload ("softmax.int"), or that of a node ("AddmmBackward0").

    `passed` is the dtype among its arguments, if one was passed, and `scalars` the plain numbers among them. `tensors`
    are the tensors themselves, kept while the event is open; `wrapped` is set if transforms of torch.func had wrapped
    some of them; `working` is set when its casts are over.
    """

    kind: EventKind
    name: str
    place: Place
    region: torch.dtype | None
    inputs: tuple[Seen, ...] = ()
    outputs: tuple[Seen, ...] = ()
    casts: list[SeenCast] = field(default_factory=list)
    parts: list[Event | Kernel] = field(default_factory=list)
    error: str | None = None
    passed: torch.dtype | None = None
    scalars: tuple[tuple[str, float], ...] = ()
    tensors: tuple[torch.Tensor, ...] = ()
    wrapped: bool = False
    working: bool = False

    def kernels(self) -> list[Kernel]:
        """Every kernel inside, in order."""
        found: list[Kernel] = []
        for part in self.parts:
            found.extend([part] if isinstance(part, Kernel) else part.kernels())
        return found
