"""What each rank is doing, told to the others about once a second, so that an error can name the rank that is missing.

A thread looks at the main thread from outside (its stack, the Trainer's count of steps) and writes what it sees into
the store: the step itself does nothing for it. When a rank waits in vain, it reads what the others have written last.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

from amp_lab.train.distributed.board import Board
from amp_lab.train.distributed.places import Place, latecomer, seen
from amp_lab.train.distributed.stores import HashStore

EVERY: Final = 1.0  # seconds from one beat to the next


class Pulse:
    """Writes this rank's place on the board, again and again; for a process alone, it does nothing.

    Args:
        store: a client that nobody else uses; None for a process alone.
        rank, size: which process this is, of how many.
        timeout: of a collective, in seconds.

    Attributes:
        board: where the ranks write.
    """

    def __init__(self, store: Any = None, rank: int = 0, size: int = 1, timeout: float = 600.0) -> None:
        self.board = Board(HashStore() if store is None else store, rank, size)
        self._timeout, self._limit = timeout, math.inf
        self._step: Callable[[], int] = lambda: 0
        self._parent = os.getppid()
        self._main = threading.main_thread().ident
        self._place, self._moved, self._beats = Place(0, "starting", False), time.monotonic(), 0
        self._waits = self._moved
        self._failed: Place | None = None  # where it was when its connection broke
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amp_lab pulse", daemon=True)

    def follow(self, trainer: Any) -> None:
        """Tell how many steps this Trainer has done."""
        self._step = lambda: int(trainer.step)

    def __enter__(self) -> Pulse:
        if self.board.size > 1:
            self._tell(self._place)  # so that a rank that is gone before its next beat was there
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, where: TracebackType | None) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(2 * EVERY)

    def speak_early(self) -> None:
        """Name who is missing before a collective's time is over. NCCL ends the process then, and nobody could."""
        self._limit = self._timeout - min(10.0, self._timeout / 4)

    def lost(self) -> None:
        """Stay in the place where this rank has waited in vain, though it does something else now: it looks for who."""
        self._failed = replace(self._place, waiting=True)

    @property
    def place(self) -> Place:
        """Where this rank is, seen now."""
        return replace(self._failed) if self._failed else seen(self._main, self._step())

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._step()

    def _run(self) -> None:
        """Beat; and end this process, as by a launcher's SIGTERM, if the launcher itself has been killed."""
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        while not self._end.wait(EVERY):
            if launched and os.getppid() != self._parent:
                launched = False
                os.kill(os.getpid(), signal.SIGTERM)
            with contextlib.suppress(RuntimeError):  # the store goes with the process that hosts it
                self._beat()

    def _beat(self) -> None:
        now, place = time.monotonic(), self.place
        if place.step != self._place.step:
            self._moved = now
        if (place.step, place.doing) != (self._place.step, self._place.doing):
            self._waits = now
        place.since = now - self._moved
        self._tell(place)
        if place.waiting and now - self._waits > self._limit:
            self._speak(place, now - self._waits)

    def _tell(self, place: Place) -> None:
        self._beats += 1
        place.beat, self._place = self._beats, place
        self.board.write(place)

    def _speak(self, place: Place, seconds: float) -> None:
        """Say before the end who is missing; the first of those that wait does."""
        self._limit = math.inf
        places = self.board.places()
        said = latecomer(places)
        waiting = [rank for rank, each in places.items() if each.waiting and each.step >= place.step]
        if said and min(waiting, default=self.board.rank) >= self.board.rank:
            print(
                f"rank {self.board.rank} has waited for {seconds:.0f} s: {said}", file=sys.stderr, flush=True
            )
