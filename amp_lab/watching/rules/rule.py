"""What a rule is: a small function with a name, a weight, and what else its finding explains."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from amp_lab.watching.recording.events import Event
from amp_lab.watching.recording.run import Run


class Severity(enum.IntEnum):
    """How bad it is."""

    NOTE = 1  # right, but pointless, or worth knowing
    RISK = 2  # right until something happens that will happen
    WRONG = 3  # the run computes something else than was meant, or cannot go on


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the user's code, told as lines to take out and to put in.

    `event` is where. Each of `remove` and `insert` is code without indentation; `remove` empty: `insert` goes before
    the event's line ("before"), before the `for` that gives the line its variable ("before loop"), or after the line
    ("after"). `{scaler}`, `{optimizer}`, `{model}` stand for the user's names. `{line}` in `insert` stands for the
    user's line itself; remove=("{line}",) takes it out, remove=("{loop}",) also the `for` and `if` around it in which
    nothing else stands. `also` are changes of other lines that belong to the same fix; `{moved}` in their `insert`
    stands for what this one takes out.
    """

    event: Event
    remove: tuple[str, ...] = ()
    insert: tuple[str, ...] = ()
    place: str = "before"
    say: str = ""  # what to do, in words: shown with the diff, or alone where there is no line
    also: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule has found.

    `sentence` says what is wrong, with the numbers seen, in one sentence. `events` are the evidence, in order, the
    first is where it shows first. `values` are numbers worth a line of their own, by what they are.
    """

    sentence: str
    events: tuple[Event, ...]
    values: Mapping[str, object] = field(default_factory=dict)
    fix: Fix | None = None
    severity: Severity | None = None  # if it is another than the rule's


Look = Callable[[Run], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    severity: Severity
    title: str
    look: Look
    explains: frozenset[str]  # rules whose findings are consequences of this one, where both fire


RULES: Final[dict[str, Rule]] = {}


def rule(
    id: str, severity: Severity, *, title: str, explains: tuple[str, ...] = ()
) -> Callable[[Look], Look]:
    """Register a function as a rule. Its docstring says what is wrong and why, then shows a wrong loop and a right one.

    The two loops, under the lines "Wrong:" and "Right:", are run by tests: they are the body of a training loop
    `for x, y in batches:` with `model`, `optimizer`, `scaler`, `loss_fn`, `device_type` and everything in
    `tests/watching/docs.py` at hand; or a whole loop, if they begin with `for` or with a setting before it.
    """

    def register(look: Look) -> Look:
        if id in RULES:
            raise ValueError(f"two rules are called {id!r}")
        RULES[id] = Rule(id, severity, title, look, frozenset(explains))
        return look

    return register
