"""What the rules read: the events that were kept, and the facts about what is watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from amp_lab.watching.recording.events import Event
from amp_lab.watching.recording.ranks.seen import RanksSeen
from amp_lab.watching.underflow.sample import Sample

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer, as it was when the watch began (or when it was first met)."""

    kind: str  # "AdamW"
    dtypes: frozenset[torch.dtype]  # of its parameters
    parameters: int
    foreign: int  # of them are not in any watched model
    requires_grad: int
    fused: bool
    eps: float | None = None
    has_lr_schedule: bool = False
    one_cycle: bool = False  # that schedule is a OneCycleLR
    models: frozenset[int] = frozenset()  # the watched models that hold some of its parameters
    shared: int = 0  # parameters that are in another watched optimizer, too
    momentum: float = 0.0  # the largest of its groups'
    fresh: bool = True  # it has no state yet: it has never stepped


@dataclass(frozen=True, slots=True)
class ModelFacts:
    kind: str
    device_type: str
    dtypes: frozenset[torch.dtype]  # of its parameters
    buffers: frozenset[torch.dtype]  # of its floating-point buffers
    parameters: int
    requires_grad: int
    unoptimized: int  # parameters that require a gradient and are in no watched optimizer
    compiled: bool = False
    abandoned: int = 0  # that have a gradient now, are in no optimizer, and come after all that are in one
    half_norms: tuple[str, ...] = ()  # normalising layers whose statistics are FP16 or BF16: their paths
    small_eps: tuple[
        tuple[str, float], ...
    ] = ()  # modules with 16-bit parameters, and an eps that is 0 there
    islands: tuple[str, ...] = ()  # paths of trained modules whose code says autocast(enabled=False)


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    kind: str  # "GradScaler"
    enabled: bool
    asked_enabled: bool | None  # what it was made with, where that is known
    device: object  # what it was made with as `device`: a number if somebody meant init_scale
    scale: float | None  # at the beginning
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    given: bool  # handed to watch, not met on the way


@dataclass(frozen=True)
class Run:
    """A watched run.

    `events` are those kept, in order: all of the first steps and of the last ones, of every step in which a step was
    skipped or something else happened than in the steps before, up to a bound. `steps` is how many there were, of
    which `kept_steps` are complete here.
    """

    models: Sequence[ModelFacts]
    optimizers: Sequence[OptimizerFacts]
    scalers: Sequence[ScalerFacts]
    schedulers: Sequence[str]  # their kinds
    events: Sequence[Event]
    steps: int
    kept_steps: frozenset[int]
    scales: Sequence[tuple[int, float]] = ()  # (step, scale after update) of scaler 0, where it changed
    skips: Sequence[int] = ()  # the steps in which an optimizer was skipped; all of them, up to a bound
    counts: dict[str, int] = field(default_factory=dict)  # of every event, kept or not, by its class's name
    notes: Sequence[str] = ()  # what could not be watched
    underflow: Sequence[Sample] = ()  # of gradients that FP16 rounded
    ranks: RanksSeen = field(default_factory=RanksSeen)  # what all processes told that train together

    def of(self, *kinds: type[E]) -> Iterator[E]:
        """Yield the events of these kinds."""
        return (event for event in self.events if isinstance(event, kinds))

    def by_step(self) -> Iterator[tuple[int, list[Event]]]:
        """Yield the steps that were kept completely, each with its events."""
        found: dict[int, list[Event]] = {}
        for event in self.events:
            if event.step in self.kept_steps:
                found.setdefault(event.step, []).append(event)
        yield from found.items()
