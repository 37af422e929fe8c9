"""What is kept of a run: a bounded part of its events, and counts of all of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import torch

from amp_lab.watching.recording import events as kinds
from amp_lab.watching.recording.events import Event
from amp_lab.watching.recording.readings import Readings

T = TypeVar("T")

FIRST_STEPS: Final = 16
LAST_STEPS: Final = 32
# Steps that went like no step before: so many different ones, and so many of each.
DIFFERENT: Final = 64
OF_EACH: Final = 3
MOST_IN_A_STEP: Final = 2_000
MOST_EVENTS: Final = 20_000
MOST_CHANGES: Final = 4_000  # of the scale, and steps that were skipped

_TOGETHER: Final = 16  # steps that are compared at a time: one by one, each would cost several times as much

# What tells two events of a kind apart, beside their line; numbers do not, they are others in each step.
_TELLS: Final[dict[type[Event], tuple[str, ...]]] = {
    kinds.RegionEntered: ("device_type", "dtype", "enabled", "grad"),
    kinds.RegionLeft: ("raised", "main"),
    kinds.Forward: ("model", "training", "grad", "inside", "recomputed", "raised", "outputs"),
    kinds.Scaled: ("scaler", "dtype", "shape"),
    kinds.Backward: ("how", "scaled_by", "exactly", "before", "touched", "divided_by", "raised"),
    kinds.Unscaled: ("optimizer", "before", "by_step", "raised"),
    kinds.Clipped: ("how", "optimizers", "state", "limit", "raised"),
    kinds.Stepped: ("optimizer", "scaler", "state", "ran", "with_gradient", "raised"),
    kinds.Updated: ("scaler", "given", "raised"),
    kinds.ZeroGrad: ("optimizers", "by", "before", "set_to_none"),
    kinds.Scheduled: ("scheduler", "kind", "optimizer"),
    kinds.Averaged: ("kind", "dtype"),
    kinds.StateTaken: ("of", "index", "state", "empty"),
    kinds.StateLoaded: ("of", "index", "empty", "raised"),
    kinds.Saved: ("has", "state"),
    kinds.Noticed: ("what",),
    kinds.BadGradients: ("optimizer",),
}

_TOLD: Final = {kind: itemgetter(*names) for kind, names in _TELLS.items()}


# An event before it is one: its class, and its fields. Most are never made: their step is like others.
Noted = tuple[type[Event], dict[str, Any]]


@dataclass(slots=True)
class Step:
    """What was noted in a step. `whole`: none was left out."""

    number: int
    noted: list[Noted] = field(default_factory=list)
    whole: bool = True
    is_told: bool = False  # something was found out about it that is not found out again

    def course(self) -> int:
        """Return a number that is another one for a step that went another way."""
        return hash(tuple([_told(*noted) for noted in self.noted]))

    def events(self) -> list[Event]:
        return [kind(**fields) for kind, fields in self.noted]


def _told(kind: type[Event], fields: dict[str, Any]) -> tuple[object, ...]:
    where = fields["where"]
    line = None if where is None else (where.file, where.line)
    try:
        told = _TOLD[kind](fields) if kind in _TOLD else None
    except KeyError:  # one that has a default
        told = tuple([fields.get(name) for name in _TELLS[kind]])
    return kind, line, fields["autocast"], len(fields["regions"]), told


class Ends(Generic[T]):
    """The first ones and the last ones of many."""

    def __init__(self, most: int) -> None:
        self._most = most // 2
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=self._most)
        self.latest: T | None = None

    def append(self, value: T) -> None:
        self.latest = value
        (self._first if len(self._first) < self._most else self._last).append(value)

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        yield from self._last


class History:
    """Events, step by step. `events()` is what was kept of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._skips: Ends[int] = Ends(MOST_CHANGES)
        self._scales: Ends[tuple[int, float]] = Ends(MOST_CHANGES)
        self._scale: float | None = None
        self._skip_readings, self._scale_readings = Readings(self._read_skip), Readings(self._read_scale)
        self._number = 0
        self._now = Step(1)
        self._kept: list[Step] = []  # for good
        self._ended: list[Step] = []  # of which nobody has decided yet what to keep
        self._last: deque[Step] = deque()
        self._courses: Counter[int] = Counter()
        self._in_kept = self._in_last = 0  # how many events
        self._at_end = 0  # how many the step that runs had when it ended

    @property
    def number(self) -> int:
        """How many events there were."""
        return self._number

    def add(self, kind: type[Event], fields: dict[str, Any]) -> None:
        """Note an event of the step that runs, by the fields of its class; its number is given here."""
        self._number = fields["number"] = self._number + 1
        self.counts[kind.__name__] += 1
        now = self._now
        if kind is kinds.Replayed:
            now.is_told = True
        elif len(now.noted) >= MOST_IN_A_STEP:
            now.whole = False
            return
        now.noted.append((kind, fields))

    def skip(self, step: int) -> None:
        """An optimizer was left out in a step."""
        self._skip_readings.add(step, 1.0)

    def may_have_skipped(self, step: int, found: torch.Tensor) -> None:
        """An optimizer was left out if this number is above 0."""
        self._skip_readings.add(step, found)

    def scale(self, step: int, before: float | torch.Tensor, after: float | torch.Tensor) -> None:
        """The scale of the first scaler, before and after its update."""
        if self._scale is None and not isinstance(before, torch.Tensor):
            self._scale = before
        self._scale_readings.add(step, after)

    def _read_skip(self, step: int, found: float) -> None:
        if found > 0 and self._skips.latest != step:
            self._skips.append(step)

    def _read_scale(self, step: int, scale: float) -> None:
        if scale != self._scale:
            self._scale = scale
            self._scales.append((step, scale))

    def skips(self) -> list[int]:
        """Return the steps in which an optimizer was left out. The host waits for the devices."""
        self._skip_readings.read()
        return list(self._skips)

    def scales(self) -> list[tuple[int, float]]:
        """Return the scale where it changed, with the step. The host waits for the devices."""
        self._scale_readings.read()
        return list(self._scales)

    def end_step(self) -> None:
        """The step that runs has ended; what follows may belong to it all the same."""
        self._at_end = len(self._now.noted)

    def begin_step(self, number: int, around: frozenset[int] = frozenset()) -> None:
        """Begin another step; what to keep of those that have ended is decided later.

        Args:
            around: the regions that are open. With the first of them that was entered since the end, the step began.
        """
        ended, self._now = self._now, Step(number)
        if around:
            self._move_since(ended, around)
        self._ended.append(ended)
        if len(self._ended) >= _TOGETHER or len(ended.noted) > MOST_IN_A_STEP // _TOGETHER:
            self._sort_out()

    def _sort_out(self) -> None:
        ended, self._ended = self._ended, []
        for step in ended:
            self._keep(step)

    def _keep(self, ended: Step) -> None:
        if self._is_worth_keeping(ended):
            self._kept.append(ended)
            self._in_kept += len(ended.noted)
            return
        self._last.append(ended)
        self._in_last += len(ended.noted)
        while len(self._last) > LAST_STEPS or (len(self._last) > 1 and self._in_last > MOST_EVENTS // 2):
            self._in_last -= len(self._last.popleft().noted)

    def _move_since(self, ended: Step, around: frozenset[int]) -> None:
        for index in range(self._at_end, len(ended.noted)):
            kind, fields = ended.noted[index]
            if kind is kinds.RegionEntered and fields["region"] in around:
                self._now.noted = ended.noted[index:]
                del ended.noted[index:]
                for _, each in self._now.noted:
                    each["step"] = self._now.number
                return

    def _is_worth_keeping(self, step: Step) -> bool:
        course = step.course()
        is_new = course in self._courses or len(self._courses) < DIFFERENT
        if is_new:
            self._courses[course] += 1
        fits = self._in_kept + len(step.noted) <= MOST_EVENTS // 2
        return step.is_told or (
            fits and (step.number <= FIRST_STEPS or (is_new and self._courses[course] <= OF_EACH))
        )

    def steps(self) -> list[Step]:
        """Return the steps that were kept, in order, with the one that runs."""
        self._sort_out()
        found = sorted([*self._kept, *self._last], key=lambda step: step.number)
        return [*found, self._now] if self._now.noted else found

    def events(self) -> list[Event]:
        return [event for step in self.steps() for event in step.events()]

    def kept_steps(self) -> frozenset[int]:
        return frozenset(step.number for step in self.steps() if step.whole)
