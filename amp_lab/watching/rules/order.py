"""What the rules about the order of calls have in common: an event, and what had happened before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from amp_lab.watching.recording.events import (
    Backward,
    Clipped,
    Event,
    Gradients,
    Scaled,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.report.names import Names
from amp_lab.watching.words import counted, in_words

E = TypeVar("E", bound=Event)

EMPTY: Final = (Gradients.NONE, Gradients.ZERO)


class Past:
    """What had happened before the present event, as far as it was kept.

    Where events are missing nothing is known until the next event of the kind that is asked for.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._after: dict[tuple[type[Event], int], int] = {}
        self._whole = True

    def since(self, kind: type[Event], index: int) -> list[Event] | None:
        """Return the events after the last one of a kind that concerns the scaler or optimizer of that number.

        An `Updated` and a `Scaled` concern a scaler, all others optimizers. Calls that raised and zero_grad of a part
        do not count. If there was none: all events from the beginning of the run; None if those were not all kept.
        """
        start = self._after.get((kind, index))
        if start is None:
            return list(self._events) if self._whole else None
        return self._events[start:]

    def happened(self, kind: type[Event], index: int) -> bool | None:
        """Whether there was such an event; None where that is not known."""
        return True if (kind, index) in self._after else (False if self._whole else None)

    def last(self, kind: type[E], index: int) -> E | None:
        """Return the last such event; None if there was none, or it is not known."""
        at = self._after.get((kind, index))
        event = self._events[at - 1] if at else None
        return event if isinstance(event, kind) else None

    def follows(self, event: Event) -> bool:
        """Whether an event is the next one: none is missing between."""
        return event.number == (self._events[-1].number + 1 if self._events else 1)

    def forget(self) -> None:
        """Events are missing: from here on nothing is known."""
        self._events, self._after, self._whole = [], {}, False

    def add(self, event: Event) -> None:
        self._events.append(event)
        for index in _concerned(event):
            self._after[type(event), index] = len(self._events)


def _concerned(event: Event) -> Iterable[int]:
    if getattr(event, "raised", False):
        return ()
    match event:
        case Updated() | Scaled():
            return (event.scaler,)
        case Stepped() | Unscaled():
            return (event.optimizer,)
        case Backward():
            return event.touched
        case ZeroGrad(all_of=True) | Clipped():
            return event.optimizers
        case _:
            return ()


def walk(run: Run) -> Iterator[tuple[Event, Past]]:
    """Yield every event that was kept, with what had happened before it."""
    past = Past()
    for event in run.events:
        if not past.follows(event):
            past.forget()
        yield event, past
        past.add(event)


@dataclass(frozen=True, slots=True)
class Window:
    """The events between one step of an optimizer and the next, and that next step."""

    events: Sequence[Event]
    step: Stepped

    @property
    def backwards(self) -> list[Backward]:
        """The backward passes that wrote to its gradients, the latest last."""
        return list(backwards(self.events, self.step.optimizer))

    @property
    def used(self) -> list[Backward]:
        """Those whose gradients were still there at the step."""
        return list(backwards(after_zero(self.events, self.step.optimizer), self.step.optimizer))


def windows(run: Run, optimizer: int) -> list[Window]:
    """Return what was between the steps of an optimizer, where all of it was kept.

    Not for a step with a closure, which computes gradients as often as it likes.
    """
    return [
        Window(events, event)
        for event, past in walk(run)
        if isinstance(event, Stepped)
        and event.optimizer == optimizer
        and not event.raised
        and not event.closure
        if (events := past.since(Stepped, optimizer)) is not None
    ]


def backwards(events: Iterable[Event], optimizer: int) -> Iterator[Backward]:
    """Yield the backward passes that wrote to the gradients of an optimizer."""
    return (e for e in events if isinstance(e, Backward) and optimizer in e.touched)


def after_zero(events: Sequence[Event], optimizer: int) -> Sequence[Event]:
    """Return the events after the last zero_grad of an optimizer; all, if there is none."""
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if isinstance(event, ZeroGrad) and event.all_of and optimizer in event.optimizers:
            return events[at + 1 :]
    return events


def of(kind: type[E], events: Iterable[Event] | None, optimizer: int | None = None) -> list[E]:
    """Return the events of a kind, those of one optimizer if it is given; none where nothing is known."""
    return [
        e
        for e in events or ()
        if isinstance(e, kind) and (optimizer is None or getattr(e, "optimizer", None) == optimizer)
    ]


def after(events: Sequence[Event] | None, event: Event | None) -> list[Event]:
    """Return those that came after an event."""
    return [e for e in events or () if event is not None and e.number > event.number]


def live(run: Run, scaler: int | None) -> bool:
    """Whether there is a scaler, and it is not a disabled one, which does nothing."""
    return scaler is not None and (scaler >= len(run.scalers) or run.scalers[scaler].enabled)


def scaled(run: Run, event: Backward) -> bool:
    """Whether the loss had been multiplied by the scale of a scaler that works."""
    return live(run, event.scaled_by)


def number(value: object) -> float:
    """Return a number that may still be on its device; 1 for a scale that is not known."""
    found = getattr(value, "value", value)
    return float(found) if isinstance(found, int | float) else 1.0


def scaler_of(run: Run, event: Event) -> str:
    """Return what the user's code calls the scaler of an event."""
    return name(run, event, "scaler", getattr(event, "scaler", None) or 0)


def optimizer_of(run: Run, event: Event) -> str:
    """Return what the user's code calls the optimizer of an event."""
    return name(run, event, "optimizer", getattr(event, "optimizer", 0))


def name(run: Run, event: Event, kind: str, index: int) -> str:
    """Return what the user's code calls an object: "self.opt"; "optimizer" or "optimizer 1" where that is not known."""
    return Names(run, event).fill(place(run, kind, index))


def place(run: Run, kind: str, index: int) -> str:
    """Where a name goes in a `Fix`: "{optimizer}", or "{optimizer 1}" where there are several."""
    return f"{{{kind} {index}}}" if len(getattr(run, f"{kind}s")) > 1 else f"{{{kind}}}"


def again(events: Sequence[Event], of_kind: str = "") -> str:
    """Say how often more a thing happened: "", ", and again in 7 more steps"."""
    steps = len({event.step for event in events})
    return f", and again in {counted(steps - 1, 'more step')}{of_kind}" if steps > 1 else ""


def times(factor: float) -> str:
    """Say how much larger something is: "1,024 times too large", "2 times too small"."""
    if factor >= 1:
        return f"{in_words(factor)} times too large"
    return f"{in_words(1 / factor) if factor else 'infinitely many'} times too small"


def by_line(events: Iterable[E]) -> list[list[E]]:
    """Gather what was called from the same line of the user's code."""
    groups: dict[tuple[str, int] | None, list[E]] = {}
    for event in events:
        groups.setdefault(line_of(event), []).append(event)
    return list(groups.values())


def line_of(event: Event) -> tuple[str, int] | None:
    """The file and line of the call; None for a line that is not known."""
    return (event.where.file, event.where.line) if event.where else None
