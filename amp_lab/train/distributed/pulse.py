"""What each rank is doing, told to the others about once a second, so that an error can name the rank that is missing.

A thread looks at the main thread from outside (its stack, the Trainer's count of steps) and writes what it sees into
the store: the step itself does nothing for it. When a rank waits in vain, it reads what the others have written last.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Final, NamedTuple

from torch.distributed import HashStore  # type: ignore[attr-defined]

from amp_lab.train.distributed.places import Place, latecomer, seen

EVERY: Final = 1.0  # seconds from one beat to the next
_SILENT: Final = 4.0  # so many seconds without a beat, and a process is gone, or frozen


class Blame(NamedTuple):
    """Who is missing, in words, and whether that is sure: the best guess is of help, too."""

    said: str
    sure: bool


class Pulse:
    """Writes this rank's place, and reads those of the others; for a process alone, it does nothing.

    Args:
        store: a client that nobody else uses; None for a process alone.
        rank, size: which process this is, of how many.
        timeout: of a collective, in seconds.
    """

    def __init__(self, store: Any = None, rank: int = 0, size: int = 1, timeout: float = 600.0) -> None:
        self._store = HashStore() if store is None else store
        self._rank, self.size = rank, size
        self._timeout, self._limit = timeout, math.inf
        self._step: Callable[[], int] = lambda: 0
        self._parent = os.getppid()
        self._main = threading.main_thread().ident
        self._place, self._moved, self._beats = Place(0, "starting", False), time.monotonic(), 0
        self._waits = self._moved
        self._failed: Place | None = None  # where it was when its connection broke
        self._heard: dict[int, tuple[int, float]] = {}  # the last beat of each other rank, and when that was
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="amp_lab pulse", daemon=True)

    def follow(self, trainer: Any) -> None:
        """Tell how many steps this Trainer has done."""
        self._step = lambda: int(trainer.step)

    def __enter__(self) -> Pulse:
        if self.size > 1:
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

    def last_words(self, error: BaseException | None) -> None:
        """Tell the others how this rank ends, of its own accord."""
        words = "it had nothing more to do" if error is None else _line(error)
        with self._asked() as store:
            store.set(f"words/{self._rank}", json.dumps([self._step(), words, _process()]))
        self.left()

    def lost(self) -> None:
        """Stay in the place where this rank has waited in vain, though it does something else now: it looks for who."""
        self._failed = replace(self._place, waiting=True)

    def left(self) -> None:
        """Tell the others that this rank ends; for somebody else's reason, if it has no words for it."""
        with self._asked() as store:
            store.set(f"left/{self._rank}", "")

    def says_first(self, error: BaseException) -> bool:
        """Return whether no other rank has asked this about the same message."""
        first = True
        with self._asked() as store:
            first = bool(store.add(f"said/{_line(error)}", 1) == 1)
        return first

    def blame(self, patience: float = 3.0) -> Blame:
        """Say which rank is missing, and where it was last; "" if nobody can know.

        It waits for some seconds: who has failed may still be writing why, and who is silent must be heard out.
        """
        if self.size == 1:
            return Blame("", False)
        before, end = self._places(), time.monotonic() + patience
        while time.monotonic() < end:
            if words := self._words():
                return Blame(words, True)
            time.sleep(0.1)
        after = self._places()
        if before.keys() != after.keys() or not after:
            said = (
                "nobody answers where the ranks meet: rank 0 has ended, or whoever started it. Was it killed?"
            )
            return Blame(said, False)
        left = self._left()  # they have waited in vain, too
        silent = [
            rank
            for rank, place in after.items()
            if rank in before and place.beat == before[rank].beat and rank not in left
        ]
        if silent:
            place = after[silent[0]]
            said = (
                f"rank {silent[0]} ({place.process}) is silent: was it killed, or is it frozen? This one is in step "
                f"{self._step()}; the last message of the other came from step {place.step} ({place.doing})"
            )
            return Blame(said, True)
        return Blame(latecomer(after), False)

    def gone(self) -> bool:
        """Tell whether another rank has ended or is silent, or the store is gone with rank 0; asked repeatedly."""
        now = time.monotonic()
        try:
            with self._lock:
                if any(self._store.check([f"left/{each}"]) for each in self._others()):
                    return True
        except RuntimeError:
            return True
        for rank, place in self._places().items():
            if self._heard.get(rank, (-1, now))[0] != place.beat:
                self._heard[rank] = place.beat, now
        return any(now - heard > _SILENT for _, heard in self._heard.values())

    @property
    def place(self) -> Place:
        """Where this rank is, seen now."""
        return self._look()

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
        now, place = time.monotonic(), self._look()
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
        place.beat, place.process, self._place = self._beats, _process(), place
        with self._lock:
            self._store.set(f"pulse/{self._rank}", json.dumps(asdict(place)))

    def _speak(self, place: Place, seconds: float) -> None:
        """Say before the end who is missing; the first of those that wait does."""
        self._limit = math.inf
        places = self._places()
        said = latecomer(places)
        waiting = [rank for rank, each in places.items() if each.waiting and each.step >= place.step]
        if said and min(waiting, default=self._rank) >= self._rank:
            print(f"rank {self._rank} has waited for {seconds:.0f} s: {said}", file=sys.stderr, flush=True)

    def _look(self) -> Place:
        return replace(self._failed) if self._failed else seen(self._main, self._step())

    def _places(self) -> dict[int, Place]:
        found = {}
        with self._asked() as store:
            for each in self._others():
                if store.check([f"pulse/{each}"]):
                    found[each] = Place(**json.loads(store.get(f"pulse/{each}")))
        return found

    def _words(self) -> str:
        with self._asked() as store:
            for each in self._others():
                if store.check([f"words/{each}"]):
                    step, words, process = json.loads(store.get(f"words/{each}"))
                    return f"rank {each} ({process}) ended after step {step}: {words}"
        return ""

    def _left(self) -> list[int]:
        with self._asked() as store:
            return [each for each in self._others() if store.check([f"left/{each}"])]
        return []

    def _others(self) -> list[int]:
        return [each for each in range(self.size) if each != self._rank]

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Any]:
        """The store; that it is gone is no error here."""
        with contextlib.suppress(RuntimeError), self._lock:
            yield self._store


def _process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
