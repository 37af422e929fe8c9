"""A call that a rank makes alone, as in `if rank == 0: trainer.save(...)`: told after half a minute, not half an hour.

Every rank must call `fit`, `save`, `evaluate` and the like. Who calls one alone waits until the time of the group is
over, which is half an hour unless it was set. So each such call leaves a note in the group's store, and who has waited
in one for a while reads the notes of the others. Steps leave none: no time is lost there.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from amp_lab.train.distributed.places import call_of_the_trainer

_PATIENCE: Final = 30.0  # seconds
_ALL: Final = (
    "all ranks must make the same calls in the same order. (Rank 0 alone writes files, whoever calls save.)"
)


class Call(NamedTuple):
    """A call outside the step.

    Attributes:
        number: of calls that this rank has made in its group, from 1; 0 before the first.
        name: "save".
        where: "train.py, line 12, keep_best".
    """

    number: int
    name: str
    where: str


def note(group: Any, rank: int) -> str:
    """Tell the others which call this rank has just made; return its name."""
    name, where = call_of_the_trainer()
    with contextlib.suppress(Exception):  # without a store there are no notes; the call is none the worse
        store = group.get_group_store()
        number = store.add(f"amp_lab: calls of rank {rank}", 1)
        store.set(_key(rank), json.dumps(Call(number, name, where)))
    return name


@contextlib.contextmanager
def waiting(group: Any, rank: int, size: int) -> Iterator[threading.Timer]:
    """Wait for the others in here; if that takes long, one rank says on stderr for whom."""
    timer = threading.Timer(_PATIENCE, _say, (group, rank, size))
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()
        timer.join()


def apart(group: Any, size: int) -> str:
    """Say which ranks have not made a call that others have made, or have made another one; "" if all are alike."""
    with contextlib.suppress(Exception):
        return _apart(_noted(group, size))
    return ""


def differ(names: Sequence[str]) -> str:
    """Say what each rank has called, where they met in different calls."""
    listed = ", ".join(f"{name} on rank {rank}" for rank, name in enumerate(names))
    return f"one call of all ranks is {listed}: {_ALL}"


def _say(group: Any, rank: int, size: int) -> None:
    with contextlib.suppress(Exception):
        calls = _noted(group, size)
        said = _apart(calls)
        if said and rank == _foremost(calls):
            print(f"rank {rank} has waited for {_PATIENCE:.0f} s: {said}", file=sys.stderr, flush=True)


def _apart(calls: list[Call]) -> str:
    rank = _foremost(calls)
    last = calls[rank]
    behind = [each for each, call in enumerate(calls) if call.number < last.number]
    others = [
        each for each, call in enumerate(calls) if call.number == last.number and call.name != last.name
    ]
    if behind:
        ranks, have = ("rank", "has") if len(behind) == 1 else ("ranks", "have")
        shown = ", ".join(map(str, behind[:8])) + (" …" if len(behind) > 8 else "")
        missing = f"which {ranks} {shown} {have} not called so far"
    elif others:
        missing = f"rank {others[0]} in {_shown(calls[others[0]])}"
    else:
        return ""
    return f"rank {rank} waits in {_shown(last)}, {missing}: {_ALL}"


def _foremost(calls: list[Call]) -> int:
    """Return the first rank that has made the most calls."""
    return max(range(len(calls)), key=lambda rank: (calls[rank].number, -rank))


def _noted(group: Any, size: int) -> list[Call]:
    store = group.get_group_store()
    keys = [_key(rank) for rank in range(size)]
    return [Call(*json.loads(store.get(key))) if store.check([key]) else Call(0, "", "") for key in keys]


def _shown(call: Call) -> str:
    return f"{call.name} ({call.where})" if call.where else call.name


def _key(rank: int) -> str:
    return f"amp_lab: call of rank {rank}"
