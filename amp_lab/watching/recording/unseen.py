"""Runs that are no part of any loop: a batch that is run again. No watch in the process notes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Pausable(Protocol):
    """A recorder, for those that must not import it."""

    def paused(self) -> AbstractContextManager[None]:
        """Note nothing for a while."""


_ON: dict[int, Pausable] = {}


def is_on(recorder: Pausable) -> None:
    """A recorder notes calls from now on."""
    _ON[id(recorder)] = recorder


def is_off(recorder: Pausable) -> None:
    """A recorder notes nothing any more. Without effect on one that was off."""
    _ON.pop(id(recorder), None)


def notes(recorder: Pausable) -> bool:
    """Return whether a recorder is on."""
    return id(recorder) in _ON


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Let no watch note what is called in here."""
    with contextlib.ExitStack() as stack:
        for recorder in list(_ON.values()):
            stack.enter_context(recorder.paused())
        yield
