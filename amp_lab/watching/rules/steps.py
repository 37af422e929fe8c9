"""What many rules ask a run: which steps were skipped, how the scale went, whether FP16 was trained in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from amp_lab.watching.recording.events import Backward, Event, Forward, Scaled, Stepped, Updated
from amp_lab.watching.recording.run import E, Run
from amp_lab.watching.rules.rule import Fix
from amp_lab.watching.words import read, steps_in_words

REGULAR: Final = 0.8  # of all steps: what happens in so many of them is meant to happen in each
FEW: Final = 3  # steps: with fewer nobody can tell what is regular


def was_skipped(event: Stepped) -> bool:
    """Whether the scaler left this step out. False where that cannot be known."""
    return event.scaler is not None and not event.raised and read(event.skipped) is True


def asked(run: Run, optimizer: int | None = None) -> dict[int, list[Stepped]]:
    """Return, for each step that was kept, how optimizers (or this one) were asked to step."""
    found: dict[int, list[Stepped]] = {}
    for event in run.of(Stepped):
        if event.step in run.kept_steps and optimizer in (None, event.optimizer) and not event.raised:
            found.setdefault(event.step, []).append(event)
    return found


def skipped_steps(run: Run, optimizer: int | None = None) -> list[int]:
    """Return the kept steps in which every optimizer that was asked (or this one) was left out."""
    return [step for step, events in asked(run, optimizer).items() if all(map(was_skipped, events))]


def real_steps(run: Run, optimizer: int | None = None) -> list[int]:
    """Return the kept steps in which an optimizer (or this one) changed its weights."""
    return [step for step, events in asked(run, optimizer).items() if not all(map(was_skipped, events))]


def steps_of(events: Iterable[Event]) -> list[int]:
    """Return the numbers of the steps, each once, in order."""
    return sorted({event.step for event in events})


def in_nearly_all(steps: Collection[int], of: Collection[int]) -> bool:
    """Whether something that happened in `steps` belongs to each step: it happened in nearly all of `of`."""
    of = set(of)
    return len(of) >= FEW and len(of & set(steps)) >= REGULAR * len(of)


def in_every_step(run: Run, events: Sequence[Event]) -> bool:
    """Whether these events, all there are of their kind, came exactly once in each step, kept or not."""
    if not events or len(steps_of(events)) != len(events):
        return False
    of_kind = list(run.of(type(events[0])))
    return len(of_kind) == len(events) and run.counts.get(type(events[0]).__name__, 0) >= run.steps >= FEW


def by_line(events: Iterable[E]) -> list[list[E]]:
    """Gather the events that the same line made."""
    found: dict[object, list[E]] = {}
    for event in events:
        place = event.where and (event.where.file, event.where.line)
        found.setdefault(place, []).append(event)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Turn:
    """What an update made of a scale. `skipped`: an optimizer of this scaler was left out in the step."""

    event: Updated
    before: float
    after: float
    skipped: bool
    step: Stepped | None  # the one that was skipped, if any


def turns(run: Run, scaler: int) -> list[Turn]:
    """Return the updates of a scaler that were kept, in order."""
    left_out = {e.step: e for e in run.of(Stepped) if e.scaler == scaler and was_skipped(e)}
    found = []
    for event in run.of(Updated):
        before, after = read(event.before), read(event.after)
        if event.scaler == scaler and not event.raised and before is not None and after is not None:
            skip = left_out.get(event.step)
            found.append(Turn(event, before, after, skip is not None, skip))
    return found


def skipped_to_the_end(all_turns: Sequence[Turn]) -> list[Turn]:
    """Return the last turns, as long as they were skipped in one step after the other, with no step missing.

    One at a scale of 0 counts as skipped: torch takes it, with gradients of 0/0.
    """
    found: list[Turn] = []
    for turn in reversed(all_turns):
        if not (turn.skipped or turn.before == 0) or (found and found[-1].event.step - turn.event.step > 1):
            break
        found.append(turn)
    return found[::-1]


def active_scalers(run: Run) -> list[int]:
    """Return the enabled scalers that scaled something, by number."""
    used = {event.scaler for event in run.of(Scaled)}
    return [number for number, facts in enumerate(run.scalers) if facts.enabled and number in used]


def fp16_without_scale(run: Run) -> list[Backward]:
    """Return the backward passes of losses that nobody scaled, in steps whose forward pass ran FP16 autocast."""
    fp16 = {
        event.step
        for event in run.of(Forward)
        if event.training and event.grad and torch.float16 in (event.autocast, event.inside)
    }
    return [
        event
        for event in run.of(Backward)
        if event.step in fp16 and event.how == "backward" and not event.raised and not _is_scaled(run, event)
    ]


def _is_scaled(run: Run, event: Backward) -> bool:
    if event.scaled_by is None:
        return False
    return event.scaled_by >= len(run.scalers) or run.scalers[event.scaled_by].enabled


def in_steps(steps: Sequence[int]) -> str:
    """Write "step 7", "steps 1 to 3 and 7"."""
    return f"step{'' if len(steps) == 1 else 's'} {steps_in_words(steps)}"


def evidence_of(some: Sequence[Turn]) -> tuple[Event, ...]:
    """Return the skipped steps and the updates, in order."""
    events = [each for turn in some for each in (turn.step, turn.event) if each is not None]
    return tuple(sorted(events, key=lambda event: event.number))


def only_if_taken(run: Run, event: Event, say: str) -> Fix:
    """Return the change that lets a line run only after a step that was taken: a scale that sank tells of a skip."""
    updates = [each for each in run.of(Updated) if each.step == event.step and each.number < event.number]
    if not updates or updates[-1].where is None or event.where is None:
        return Fix(event, say=say)
    return Fix(
        event,
        ("{line}",),
        ("if {scaler}.get_scale() >= scale:", "    {line}"),
        say=say,
        also=(Fix(updates[-1], insert=("scale = {scaler}.get_scale()",), place="before"),),
    )
