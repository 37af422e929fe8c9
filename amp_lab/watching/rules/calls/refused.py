"""What the rules about a scaler's calls have in common: calls that were refused, and what came before them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import TypeVar

from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Forward,
    Scaled,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import calls, turn_below
from amp_lab.watching.rules.order import Past, after, live, of, scaler_of, walk, windows

K = TypeVar("K", Stepped, Unscaled)


def refused(run: Run) -> Iterator[tuple[Stepped | Unscaled, list[Event]]]:
    """Yield each step and unscale_ of a scaler that raised, with all since its last update."""
    for event, past in walk(run):
        if isinstance(event, Stepped | Unscaled) and event.raised and live(run, event.scaler):
            before = past.since(Updated, event.scaler or 0)
            if before:
                yield event, before


def refused_updates(run: Run) -> Iterator[tuple[Updated, Past]]:
    """Yield each update that raised, with all that had happened before."""
    for event, past in walk(run):
        if isinstance(event, Updated) and event.raised and live(run, event.scaler):
            yield event, past


def waiting_updates(run: Run) -> Iterator[tuple[Updated, list[Event]]]:
    """Yield each update that was refused while scaled gradients waited for a step, with all since the one before."""
    for event, past in refused_updates(run):
        before = past.since(Updated, event.scaler) or []
        passes = [e for e in of(Backward, before) if e.scaled_by == event.scaler and e.touched]
        if passes and not of(Stepped, after(before, passes[0])):
            yield event, before


def unscaled_again(run: Run) -> Iterator[tuple[Unscaled, Unscaled, list[Event]]]:
    """Yield an unscale_ that was refused after a backward pass, the one before it, and all since the last update."""
    for event, before in refused(run):
        first = last(Unscaled, before, event)
        if not isinstance(event, Unscaled) or first is None or not another(before, first):
            continue
        if not of(Stepped, after(before, first)):
            yield event, first, before


def given_up_to_the_end(run: Run, optimizer: int) -> list[Backward]:
    """Return the last backward passes of a run whose scaled gradients nobody unscaled or stepped with, in order.

    Only those whose gradients were zeroed before the next one: not those of micro-batches.
    """
    found: list[Backward] = []
    zeroed = True
    for event, past in walk(run):
        if not past.follows(event) or (
            isinstance(event, Stepped | Unscaled) and event.optimizer == optimizer
        ):
            found, zeroed = [], True
        elif isinstance(event, ZeroGrad) and optimizer in event.optimizers:
            zeroed = True
        elif isinstance(event, Backward) and optimizer in event.touched and not event.raised:
            found = [*found, event] if zeroed and live(run, event.scaled_by) else []
            zeroed = False
    return found


def last(kind: type[K], before: list[Event], event: Stepped | Unscaled) -> K | None:
    """Return the last call of this kind that the same scaler did for the same optimizer."""
    found = [e for e in of(kind, before, event.optimizer) if e.scaler == event.scaler and not e.raised]
    return found[-1] if found else None


def another(before: list[Event], first: Event) -> bool:
    """Whether a forward or backward pass followed an event: then another step had begun."""
    return any(isinstance(e, Forward | Scaled | Backward) for e in after(before, first))


def accumulates(run: Run, first: Unscaled, before: list[Event]) -> bool:
    """Whether an unscale_ was called for a micro-batch, so that more gradients came on top of what it had unscaled.

    If not, the loop turned back before it reached update(): then the next step begins with a zero_grad, or a
    `continue` stands below.
    """
    if any(isinstance(e, ZeroGrad) for e in after(before, first)):
        return False
    if divided(before) or any(len(w.used) > 1 for w in windows(run, first.optimizer)):
        return True
    return turn_below(first) is None


def divided(events: Iterable[Event] | None) -> bool:
    """Whether a loss was divided by a whole number, as those of micro-batches are."""
    return any(e.divided_by and e.divided_by >= 2 and e.divided_by % 1 == 0 for e in of(Backward, events))


class Meant(enum.Enum):
    """What an update was to be that came while scaled gradients were waiting for their step."""

    AFTER_STEP = "it stands above the step"
    AFTER_WINDOW = "the step is taken after several micro-batches only"
    UNKNOWN = "there is no step"


def meant(run: Run, event: Updated, before: list[Event]) -> tuple[Meant, Updated | None]:
    """Tell by the user's code what an update was to be, and where the step is (the event, as if it were there)."""
    for at, below, deeper in calls(event, f"{scaler_of(run, event)}.step"):
        if deeper:
            return Meant.AFTER_WINDOW, at
        if below:
            return Meant.AFTER_STEP, at
    return (Meant.AFTER_WINDOW if divided(before) else Meant.UNKNOWN), None
