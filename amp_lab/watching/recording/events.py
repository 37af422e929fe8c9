"""What can happen in a training loop: one small class for each kind of event.

An event is noted when the call begins to matter: before a call that may raise, its event is there already, with what
was known; results are filled in by the recorder before it appends the event (`number` is given then).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from amp_lab.autocast.records import Source
from amp_lab.watching.recording.later import Later

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport


class Gradients(enum.Enum):
    """What the gradients of an optimizer are, as far as the calls tell."""

    NONE = "none"  # every .grad is None
    ZERO = "zeros"  # zero_grad(set_to_none=False), or zeroed by hand
    TRUE = "those of the loss itself"
    SCALED = "multiplied by the loss scale"
    UNSCALED = "divided by the loss scale again, by unscale_"
    MIXED = "a sum of parts that were multiplied by different scales"

    __hash__ = object.__hash__  # an Enum's own is slow: it hashes the name each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have.

    Attributes:
        number: 1 for the first event of the run; gaps tell that events between were not kept.
        step: which step of the training loop this belongs to, from 1. A step is what ends with `scaler.update()`, or,
            without it, when every watched optimizer was asked to step; what follows before the next forward pass,
            scaled loss or backward pass (a scheduler, a zero_grad) still belongs to it.
        where: the line of the user's code that made the call; None if there is none on the stack.
        names: what the user's code calls the objects in reach, by what they are: {"scaler": "scaler", "optimizer":
            "self.opt", "model": "net"} (several of a kind: "optimizer 0", "optimizer 1"). Only those of its frame.
        main: whether it happened in the thread in which the watch began.
        autocast: the dtype of autocast in force for the model's device type; None where it is off.
        regions: the autocast regions that were open in this thread, outermost first, by `RegionEntered.region`.
    """

    number: int = 0
    step: int = 0
    where: Source | None = None
    names: tuple[tuple[str, str], ...] = ()
    main: bool = True
    autocast: torch.dtype | None = None
    regions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEntered(Event):
    """`with torch.autocast(...)` begins (or a decorated function). `region` is its number in this run.

    `regions` are those that were open before it.
    """

    region: int
    device_type: str
    dtype: torch.dtype
    enabled: bool
    cache_enabled: bool = True
    grad: bool = True  # whether gradients were being recorded when it was entered
    again: bool = False  # the same autocast object has been entered already, and not been left
    asked: bool | None = None  # the `enabled` it was made with, where that is known: PyTorch may disable it


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLeft(Event):
    """A region ends. `raised`: because of an exception."""

    region: int
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCleared(Event):
    """`torch.clear_autocast_cache()` by the user: the 16-bit copies of weights are forgotten in an open region, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Event):
    """A watched model was called (noted when it returns or raises). Regions entered inside it were noted before."""

    model: int
    device_type: str
    training: bool
    grad: bool  # whether gradients were being recorded
    inputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = ()  # the tensors among the arguments
    outputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = ()
    inside: torch.dtype | None = (
        None  # autocast's dtype in the innermost region entered inside the call, if any
    )
    recomputed: bool = False  # by activation checkpointing, in a backward pass
    weights: int | None = (
        None  # of which version they are (first and last parameter): another, if they changed
    )
    weights_dtype: torch.dtype | None = None  # of the first parameter that requires a gradient
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Event):
    """`scaler.scale(outputs)`: one event for each tensor. `result` is its id, as in `Backward.losses`."""

    scaler: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    scale: Later[float]
    finite: Later[bool]
    result: int
    result_dtype: torch.dtype
    made_by: str = ""  # the last operation of the loss: "MseLossBackward0"
    divided_by: float | None = (
        None  # `loss / 4`, `loss * 0.25`: 4.0; None where the last operation says nothing
    )
    averaged: bool = False  # the last operation was a mean, for certain: a loss function, or .mean()
    cast: bool = False  # it was cast to another dtype after that operation
    given: int = 0  # the id of what was given to scale()
    again: int | None = None  # the scaler that had scaled what was given already


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward(Event):
    """`loss.backward()`, `torch.autograd.backward(...)`, or `torch.autograd.grad(...)` (`how` = "grad").

    `scaled_by` is the scaler whose scale() made the loss (directly, or anything computed from it: then `exactly` is
    False); None for a loss that was not scaled. `seeded`: with a gradient to begin from, `h.backward(gradient)`, which
    may have been scaled in place of the loss. `before` and `after` are the states of the gradients of each watched
    optimizer. `ended_in_region`: autocast was on when it was called, see `autocast`.
    """

    how: Literal["backward", "grad"]
    losses: tuple[int, ...]
    loss_dtype: torch.dtype
    finite: Later[bool]
    scaled_by: int | None
    exactly: bool = True
    unscaled_part: bool = False  # the loss is a sum, of a scaled loss and of something that was not scaled
    scale: Later[float] | None = None
    divided_by: float | None = None  # as in Scaled: of the loss before it was scaled
    averaged: bool = False
    made_by: str = ""  # as in Scaled: of the loss before it was scaled
    cast: bool = False  # as in Scaled
    create_graph: bool = False
    seeded: bool = False
    before: tuple[Gradients, ...] = ()
    after: tuple[Gradients, ...] = ()
    touched: tuple[int, ...] = ()  # optimizers whose gradients it wrote to
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscaled(Event):
    """`scaler.unscale_(optimizer)`, called by the user (`by_step` False) or by `scaler.step`."""

    scaler: int
    optimizer: int
    before: Gradients
    scale: Later[float] | None = None
    found_inf: Later[bool] | None = None  # None: no gradients, or the call raised
    by_step: bool = False
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped(Event):
    """A function of torch.nn.utils clipped gradients ("norm", "value"), or measured their norm ("measured")."""

    how: Literal["norm", "value", "measured"]
    optimizers: tuple[int, ...]  # whose gradients
    state: Gradients
    limit: float | None = None
    norm: Later[float] | None = None  # the norm it saw, before clipping
    parameters: int = 0
    of_all: int = 0  # of how many parameters that optimizers of `optimizers` have
    error_if_nonfinite: bool = False
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Event):
    """An optimizer was asked to step: `scaler.step(optimizer)` (`scaler` is its number), or `optimizer.step()` (None).

    `skipped`: the scaler left it out (read from found_inf, also for fused optimizers). `ran`: optimizer.step was
    called (a fused one is, also when it is skipped). `state` is that of the gradients when it was asked, before
    `scaler.step` unscales. `with_gradient` of `parameters` had a gradient.
    """

    optimizer: int
    scaler: int | None
    state: Gradients
    skipped: Later[bool]
    ran: bool
    scale: Later[float] | None = None
    fused: bool = False
    closure: bool = False
    parameters: int = 0
    with_gradient: int = 0
    rates: tuple[float, ...] = ()  # learning rate of each group
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BadGradients(Event):
    """A step was skipped, and these gradients of the optimizer hold infinity or NaN. Noted where the host knows of it.

    `which`: the names of the first of their parameters, at most four. `bad` is how many there are, `of` those that
    have a gradient. `place`: which of them, in the optimizer's order; infinity that begins in one layer of a backward
    pass goes on to all layers before it ("first").
    """

    optimizer: int
    which: tuple[str, ...]
    bad: int
    of: int
    place: Literal["all", "first", "last", "some"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(Event):
    """A batch that was not finite was run again, and this came of it. `where` is the line to blame, if there is one."""

    report: OverflowReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated(Event):
    """`scaler.update()`."""

    scaler: int
    before: Later[float]
    after: Later[float]
    given: bool = False  # a new scale was given
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGrad(Event):
    """`zero_grad` of an optimizer or of a model, or `.grad = None` and zeroing by hand, as it was noticed later."""

    optimizers: tuple[int, ...]
    by: Literal["optimizer", "model", "hand"]
    set_to_none: bool
    before: tuple[Gradients, ...]  # of each of `optimizers`
    all_of: bool = True  # False: the model's zero_grad does not reach all parameters of these optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsChanged(Event):
    """Gradients were changed by other code between two events. Seen in some steps only (`probed` on both sides).

    `factor`: all sampled numbers were multiplied by this one (1/scale: unscaled by hand); None: by different ones.
    """

    optimizer: int
    state: Gradients
    factor: Later[float] | None
    changed: Later[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Event):
    """A learning-rate scheduler stepped (`scheduler`, `kind`), or somebody wrote to `lr` (both None)."""

    scheduler: int | None
    kind: str | None
    optimizer: int | None
    before: tuple[float, ...]
    after: tuple[float, ...]
    with_metric: bool = False
    given: bool = False  # where in the schedule was given: `step(epoch + batch / batches)`


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged(Event):
    """An average of the weights moved: AveragedModel.update_parameters (`kind`), or by hand (`kind` None)."""

    kind: str | None
    average: int  # which one: the id of the AveragedModel, or of the first tensor
    dtype: torch.dtype
    share: float | None = None  # of the new weights in the average: 1 - decay, where it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRead(Event):
    """`scaler.get_scale()`: on a GPU the host waits. `_scale`-reads by other ways are not seen."""

    scaler: int
    scale: Later[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerMade(Event):
    """A scaler was made while the watch was on."""

    scaler: int
    enabled: bool
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTaken(Event):
    """`state_dict()` of a watched object, or of a scaler or scheduler met on the way."""

    of: Literal["model", "optimizer", "scaler", "scheduler"]
    index: int
    state: tuple[Gradients, ...] = ()  # of each optimizer at that moment
    empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLoaded(Event):
    """`load_state_dict(...)`. `floats`: the dtypes of the floating-point tensors in what was loaded."""

    of: Literal["model", "optimizer", "scaler", "scheduler"]
    index: int
    empty: bool = False
    floats: frozenset[torch.dtype] = frozenset()
    missing: int = 0  # keys that strict=False did not find
    unexpected: int = 0
    raised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(Event):
    """`torch.save(...)`: what is in it, recognised by content."""

    has: frozenset[str]  # of "model", "optimizer", "scaler", "scheduler", "averaged"
    model_floats: frozenset[torch.dtype] = frozenset()
    model_prefix: str = ""  # "module." or "_orig_mod.", if the keys of the model's state begin with it
    state: tuple[Gradients, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Event):
    """The loop ended with an exception. `explained` is the id that `amp_lab.explain` gives it."""

    kind: str
    message: str
    explained: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Event):
    """Something a look at single operators, at sampled gradients, or at the loop's own variables told.

    `what` says which thing (the looker in `recording/looks/` and the rule that reads it agree on the name), `values`
    its numbers: Later, or plain ones.
    """

    what: str
    values: dict[str, object] = field(default_factory=dict)
