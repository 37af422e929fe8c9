"""What the closer looks noted, as the rules that read it need it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amp_lab.watching.recording.events import (
    Backward,
    Event,
    GradientsChanged,
    Noticed,
    ScaleRead,
    Stepped,
    Unscaled,
)
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Fix
from amp_lab.watching.words import counted, read, steps_in_words

Seen = dict[str, Any]  # the numbers of one call


def notices(run: Run, what: str) -> list[Noticed]:
    """Return the notices of one kind."""
    return [event for event in run.of(Noticed) if event.what == what]


def noticed(run: Run, what: str) -> Iterator[tuple[Noticed, list[Seen]]]:
    """Yield the notices of one kind, each with the numbers of its calls."""
    for event in notices(run, what):
        seen = event.values.get("seen")
        if isinstance(seen, list) and seen:
            yield event, seen


def where_it_shows(run: Run, what: str, shows: Callable[[Noticed, Seen], bool]) -> list[tuple[Noticed, Seen]]:
    """Return the notices of a kind of which a call shows something, each with the first such call."""
    found = []
    for event, seen in noticed(run, what):
        first = next((each for each in seen if shows(event, each)), None)
        if first is not None:
            found.append((event, first))
    return found


def at_one_line(found: Sequence[tuple[Noticed, Seen]]) -> list[tuple[Noticed, Seen]]:
    """Return those at the line of the first."""
    place = _place(found[0][0])
    return [each for each in found if _place(each[0]) == place]


def _place(event: Event) -> tuple[str, int] | None:
    return (event.where.file, event.where.line) if event.where else None


def number(value: object) -> float:
    """Return a number, read if it is a late one; NaN for none."""
    value = read(value) if isinstance(value, Later) else value
    return float(value) if isinstance(value, int | float) else math.nan


def finite(values: Sequence[object]) -> bool:
    """Return whether all numbers are finite."""
    return all(math.isfinite(number(value)) for value in values)


def largest(values: Sequence[object]) -> float:
    """Return the largest of some numbers; NaN if there is none."""
    return max((number(value) for value in values), default=math.nan)


def goes_back(run: Run, event: Event) -> bool:
    """Return whether a backward pass follows in the same step: what was computed was used for training."""
    return any(
        each.step == event.step and each.number > event.number and each.how == "backward"
        for each in run.of(Backward)
    )


def scaled_by(run: Run, event: Event, *, after: bool = False) -> float:
    """Return the scale of the backward pass nearest to an event in its step: before it, or after; 1 if not scaled."""
    passes = [
        each
        for each in run.of(Backward)
        if each.step == event.step and each.how == "backward" and (each.number > event.number) == after
    ]
    if not passes:
        return 1.0
    nearest = passes[0] if after else passes[-1]
    return number(nearest.scale) if nearest.scaled_by is not None and nearest.scale is not None else 1.0


def divided_by_hand(run: Run) -> Iterator[tuple[Event, float, float]]:
    """Yield where the loop's own code divided gradients by the loss scale; the factor, and the scale.

    This is looked for in some steps only. A small scale may be the number of micro-batches as well, and does not count.
    """
    for event, seen in where_it_shows(run, "gradients changed", lambda *_: True):
        scale, factor = scaled_by(run, event), number(seen["factor"])
        if scale >= 64 and abs(factor * scale - 1) < 1e-3:
            yield event, factor, scale
    for changed in run.of(GradientsChanged):
        scale, factor = scaled_by(run, changed), number(changed.factor)
        if scale >= 64 and abs(factor * scale - 1) < 1e-3 and number(changed.changed) == 1:
            yield changed, factor, scale


def stepped_by_scaler(run: Run, event: Event) -> bool:
    """Return whether scaler.step, which unscales, followed an event in its step."""
    return any(
        each.step == event.step and each.number > event.number and each.scaler is not None
        for each in run.of(Stepped)
    )


def knew_the_scale(run: Run, event: Event) -> bool:
    """Return whether the loop had asked for the scale before, in this step: it may have put it into account."""
    return any(each.step == event.step and each.number < event.number for each in run.of(ScaleRead))


def unscale_first(run: Run, event: Event, say: str) -> Fix:
    """Return the fix that calls unscale_ before a line: in code, where the loop does not call it itself elsewhere.

    And where the line stands in the function that calls backward(): elsewhere names may be out of reach.
    """
    here = event.where and (event.where.file, event.where.function)
    backward = any(each.where and (each.where.file, each.where.function) == here for each in run.of(Backward))
    if not backward or any(not each.by_step for each in run.of(Unscaled)) or len(run.optimizers) > 1:
        return Fix(event, say=say)
    return Fix(event, insert=("{scaler}.unscale_({optimizer})",), place="before loop", say=say)


def in_steps(found: Sequence[tuple[Noticed, Seen]]) -> str:
    """Say in which steps: "in step 1", "in steps 1 to 3"."""
    steps = sorted({event.step for event, _ in found})
    return f"in step{'s' if len(steps) > 1 else ''} {steps_in_words(steps)}"


def named(event: Event, kind: str) -> str:
    """Return what the user calls an object of a kind; the kind's name, if that is not known."""
    return next((name for what, name in event.names if what == kind), kind)


def other_lines(found: Sequence[tuple[Noticed, Seen]]) -> str:
    """Say that there is more: " (and 2 more lines)"."""
    more = len({_place(event) for event, _ in found}) - 1
    return f" (and in {counted(more, 'more line')})" if more > 0 else ""
