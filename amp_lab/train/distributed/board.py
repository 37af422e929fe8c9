"""A board in a store on which each rank writes where it is and how it ends, and reads what the others have written."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from amp_lab.train.distributed.places import Place


class Board:
    """The board, as one rank has it.

    Where nothing else is said, a store that is gone (with the process that hosted it) is no error: nobody has written.

    Args:
        store: a client that nobody else uses.
        rank, size: which process this is, of how many.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self.rank, self.size = store, rank, size
        self._others = [each for each in range(size) if each != rank]
        self._lock = threading.Lock()

    def write(self, place: Place) -> None:
        """Tell the others where this rank is.

        Raises:
            RuntimeError: if the store is gone.
        """
        place.process = _process()
        with self._at_store() as store:
            store.set(f"pulse/{self.rank}", json.dumps(asdict(place)))

    def places(self) -> dict[int, Place]:
        """Return where the other ranks were when they last wrote."""
        found = {}
        with self._asked() as store:
            for each in self._others:
                if store.check([f"pulse/{each}"]):
                    found[each] = Place(**json.loads(store.get(f"pulse/{each}")))
        return found

    def last_words(self, step: int, words: str) -> None:
        """Tell the others how this rank ends, of its own accord."""
        with self._asked() as store:
            store.set(f"words/{self.rank}", json.dumps([step, words, _process()]))
        self.leave()

    def words(self) -> str:
        """Return how another rank has ended of its own accord; "" if none has."""
        with self._asked() as store:
            for each in self._others:
                if store.check([f"words/{each}"]):
                    step, words, process = json.loads(store.get(f"words/{each}"))
                    return f"rank {each} ({process}) ended after step {step}: {words}"
        return ""

    def leave(self) -> None:
        """Tell the others that this rank ends; for somebody else's reason, if it has no last words."""
        with self._asked() as store:
            store.set(f"left/{self.rank}", "")

    def left(self) -> list[int]:
        """Return which other ranks have told that they end."""
        with self._asked() as store:
            return [each for each in self._others if store.check([f"left/{each}"])]
        return []

    def wait_for_others(self, seconds: float) -> None:
        """Wait until they have all told that they end, for so long at most."""
        end = time.monotonic() + seconds
        while len(self.left()) < len(self._others) and time.monotonic() < end:
            time.sleep(0.05)

    def answers(self) -> bool:
        """Tell whether the store is still there."""
        with self._asked() as store:
            store.check(["left/0"])
            return True
        return False

    def says_first(self, line: str) -> bool:
        """Tell whether no other rank has asked this about the same line; so that one of them says it."""
        with self._asked() as store:
            return bool(store.add(f"said/{line}", 1) == 1)
        return True

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Any]:
        with contextlib.suppress(RuntimeError), self._at_store() as store:
            yield store

    @contextlib.contextmanager
    def _at_store(self) -> Iterator[Any]:
        with self._lock:
            try:
                yield self._store
            except RuntimeError:
                self._store = _Gone()
                raise


class _Gone:
    """Takes the place of a store that is gone: whoever asks that again gets a page of C++ on stderr each time."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the store is gone")


def _process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
