"""A rank that does not go on, and how the others learn of it.

Who is left waiting gets an error of the connection, which names no reason. So a rank that leaves with an error puts a
note into the store of its process group first, and the others, when their connection breaks, read it.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

import torch


class RankFailed(RuntimeError):
    """Another rank has failed, and this one cannot go on without it; the message names it, and says why if it can."""


class RanksDiffer(RuntimeError):
    """Ranks do not have the same of what must be the same; raised on all of them alike."""


# gloo's errors are plain RuntimeErrors that begin with the place in its sources: "[…/gloo/transport/tcp/pair.cc:553]".
# The word alone may stand in anybody's message.
_OF_GLOO: Final = re.compile(r"\[[^\]\n]*\bgloo[/\\][^\]\n]*:\d+\]")


def is_about_others(error: BaseException) -> bool:
    """Tell an error that says that others do not answer from one that this rank has made itself."""
    if isinstance(error, RankFailed | RanksDiffer):
        return False
    if isinstance(error, torch.distributed.DistError):
        return True
    return type(error) is RuntimeError and _OF_GLOO.match(str(error)) is not None


def leave_note(group: Any, rank: int, text: str) -> None:
    """Say to the others why this rank does not go on. It fails without a word: there is an error on its way already."""
    with contextlib.suppress(Exception):
        _store(group).set(_key(rank), text)


def remove_note(group: Any, rank: int) -> None:
    """Forget what this rank has left in an earlier run of the same group."""
    with contextlib.suppress(Exception):
        _store(group).delete_key(_key(rank))


def who_left(group: Any, rank: int, size: int) -> str:
    """Say which rank has left and why, as far as that can be known."""
    for other in range(size):
        note = "" if other == rank else _note(group, other)
        if note:
            return f"rank {other} has left, so this one ends, too: {note}"
    return (
        "another rank does not answer: it has been killed, or waits for this one at another place (every rank must "
        "make the same calls in the same order: fit, and evaluate, save and state_dict, too). Look into the output of "
        "the others"
    )


def _note(group: Any, rank: int) -> str:
    with contextlib.suppress(Exception):
        store = _store(group)
        if store.check([_key(rank)]):
            return str(store.get(_key(rank)).decode(errors="replace"))
    return ""


def _store(group: Any) -> Any:
    """Where the processes of a group met. Old versions of PyTorch do not tell; then there are no notes."""
    return group.get_group_store()


def _key(rank: int) -> str:
    return f"amp_lab: rank {rank} has left"
