"""A rank that does not go on, and how the others learn of it.

Who is left waiting gets an error of the connection, which names no reason. So a rank that leaves with an error puts a
note into the store of its process group first, and the others, when their connection breaks, read it.

That is all that a Trainer does, whoever has started it (and `lone_calls`, for calls that one rank makes alone): a step
loses no time by it. Two others know more. In the script, a thread of `joined` writes where each rank is: when a Trainer
has given up, `missing` reads it, and names a rank that was killed, is frozen, or late. `amp_lab.watch` looks at loops
that know nothing of this package, and speaks while they still wait.
"""

from __future__ import annotations

import contextlib
from typing import Any

from amp_lab.train.distributed import lone_calls
from amp_lab.watching.recording.ranks.groups import is_about_talk


class RankFailed(RuntimeError):
    """Another rank has failed, and this one cannot go on without it; the message names it, and says why if it can.

    Attributes:
        known: whether the message says why.
    """

    def __init__(self, message: str, known: bool = True) -> None:
        super().__init__(message)
        self.known = known


class RanksDiffer(RuntimeError):
    """Ranks do not have the same of what must be the same; raised on all of them alike."""


def is_about_others(error: BaseException) -> bool:
    """Tell an error that says that others do not answer from one that this rank has made itself."""
    return not isinstance(error, RankFailed | RanksDiffer) and is_about_talk(error)


def line(error: BaseException) -> str:
    """Return an error in one line: "ValueError: no such thing"."""
    said = first_line(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; PyTorch's own go on with pages of C++."""
    return (str(error).strip().splitlines() or [""])[0]


def leave_note(group: Any, rank: int, text: str) -> None:
    """Say to the others why this rank does not go on. It fails without a word: there is an error on its way already."""
    with contextlib.suppress(Exception):
        _store(group).set(_key(rank), text)


def remove_note(group: Any, rank: int) -> None:
    """Forget what this rank has left in an earlier run of the same group."""
    with contextlib.suppress(Exception):
        _store(group).delete_key(_key(rank))


def who_left(group: Any, rank: int, size: int) -> RankFailed:
    """Return an error that says which rank has left and why, as far as that can be known."""
    for other, note in _notes(group, size).items():
        if other != rank:
            return RankFailed(f"rank {other} has left, so this one ends, too: {note}")
    if alone := lone_calls.apart(group, size):
        return RankFailed(f"another rank does not answer: {alone}")
    return RankFailed(
        "another rank does not answer: it has been killed, or waits for this one at another place (every rank must "
        "make the same calls in the same order: fit, and evaluate, save and state_dict, too). Look into the output of "
        "the others",
        known=False,
    )


def _notes(group: Any, size: int) -> dict[int, str]:
    found = {}
    with contextlib.suppress(Exception):
        store = _store(group)
        for rank in range(size):
            if store.check([_key(rank)]):
                found[rank] = str(store.get(_key(rank)).decode(errors="replace"))
    return found


def _store(group: Any) -> Any:
    """Where the processes of a group met. Old versions of PyTorch do not tell; then there are no notes."""
    return group.get_group_store()


def _key(rank: int) -> str:
    return f"amp_lab: rank {rank} has left"
