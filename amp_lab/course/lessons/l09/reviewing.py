"""Exercise 9.5: which claims about a Trainer and its launcher are true."""

from __future__ import annotations

from typing import Any

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l09.claims import CLAIMS, TRUE


@checker("9.5")
def true_claims(ask: Ask) -> None:
    """Ask once, and tell of the first claim that is judged wrongly."""
    got = ask()
    letters = _letters(ask.call, got)
    for letter in sorted(CLAIMS):
        if (letter in letters) is not (letter in TRUE):
            seen = f"counts claim {letter} as true" if letter in letters else f"leaves claim {letter} out"
            raise Mistake(f"claim-{letter}", call=ask.call, got=seen)


def _letters(call: str, got: Any) -> frozenset[str]:
    """Return a set of letters, or raise `Mistake` if it is anything else."""
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a set of letters")
    if type(got) not in (set, frozenset, list, tuple):
        shown = {"got": describe(got), "kind": kind(got), "want": "a set of letters"}
        raise Mistake(
            "wrong-type", call=call, **shown, advice='Write `{"A", "B"}` with the letters you found.'
        )
    for letter in got:
        if type(letter) is not str or letter not in CLAIMS:
            raise Mistake("no-such-claim", call=call, got=describe(letter))
    return frozenset(got)
