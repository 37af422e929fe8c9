"""Exercise 10.5: which programs hang."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l10.deadlocks import HANG, PROGRAMS


@checker("10.5")
def hanging_programs(ask: Ask) -> None:
    """Ask once, and tell of the first program that is judged wrongly."""
    got = ask()
    letters = _letters(ask.call, got)
    for letter in PROGRAMS:
        if (letter in letters) is not (letter in HANG):
            seen = (
                f"says that program {letter} hangs" if letter in letters else f"leaves program {letter} out"
            )
            raise Mistake(f"program-{letter}", call=ask.call, got=seen)


def _letters(call: str, got: Any) -> frozenset[str]:
    """Return a set of letters, or raise `Mistake` if it is anything else."""
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a set of letters")
    if not isinstance(got, (Set, list, tuple)):
        shown = {"got": describe(got), "kind": kind(got), "want": "a set of letters"}
        raise Mistake(
            "wrong-type", call=call, **shown, advice='Write `{"A", "B"}` with the letters you found.'
        )
    for letter in got:
        if type(letter) is not str or letter not in PROGRAMS:
            raise Mistake("no-such-program", call=call, got=describe(letter))
    return frozenset(got)
