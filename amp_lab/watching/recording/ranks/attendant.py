"""A thread beside the loop: tells the others where this rank is, and says who waits for whom while they wait.

Any loop has it that is watched. What a Trainer says when a rank has left is in `train/distributed/failures.py`.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amp_lab.watching.recording.ranks import groups, replicas
from amp_lab.watching.recording.ranks.installing import install
from amp_lab.watching.recording.ranks.records import STILL, RankRecord
from amp_lab.watching.recording.ranks.seen import RanksSeen
from amp_lab.watching.recording.ranks.shelf import Shelf
from amp_lab.watching.recording.ranks.this_rank import ThisRank
from amp_lab.watching.recording.ranks.where import place_of

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder

_EVERY: Final = 0.25  # seconds between two looks
# Seconds: of a wait that may be meant it speaks then, or after half of the group's timeout.
_LATEST: Final = 300.0
_FOR_REPORT: Final = 3.0  # seconds that a report waits at most for what other ranks have to tell
_FOR_FIRST: Final = 1.0  # and for the first sign of ranks that may not be watched at all
_AFTERWARDS: Final = 60.0  # seconds from the end of the watch, in which the others can see where this rank is
_RANKS: Final = 16  # of more ranks each looks less often: one process keeps the store of all


class Attendant:
    """Of one rank's watch, over all its starts and stops."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.this_rank, self._shelf = ThisRank(recorder), Shelf(replicas.shape_of(recorder.models))
        self._patience = min(groups.timeout() / 2, _LATEST)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._place: object = None
        self._since = time.monotonic()
        self._suspected = 0  # looks in a row that have found ranks waiting for ones that cannot come
        self._spoken = False
        self._known: dict[int, RankRecord] = {}
        self._every = _EVERY * max(1.0, len(self.this_rank.peers) / _RANKS)
        self._left_at = math.inf

    # -- on and off

    def start(self) -> None:
        """Begin, or go on."""
        record = self.this_rank.record
        record.ended = record.error = ""
        record.broken = False
        record.began, record.over = record.began or self._shelf.clock(), 0
        self._left_at = math.inf
        install(self._recorder, self.this_rank)
        if self._thread is None:
            self._tell()
            self._done.clear()
            self._thread = threading.Thread(target=self._attend, name="amp_lab.watch ranks", daemon=True)
            self._thread.start()
            atexit.register(self._exits)

    def left(self, error: BaseException | None = None, is_over: bool = True) -> None:
        """The loop has left the watch, or has raised an error in it."""
        record = self.this_rank.record
        if record.ended == "raised":
            return
        self._recorder.quietly("ranks", self.this_rank.end, is_over)
        record.ended = "left" if error is None else "raised"
        record.broken = error is not None and groups.is_about_talk(error)
        record.error = "" if error is None else f"{type(error).__name__}: {str(error)[:200]}"
        self._left_at = time.monotonic()
        if is_over:  # else there may be thousands of calls
            record.over = self._shelf.clock()
            self._tell()

    def _exits(self) -> None:
        self._done.set()
        record = self.this_rank.record
        if record.ended in ("", "left"):
            record.ended = "exited"
        self._tell()
        if (thread := self._thread) is not None:
            thread.join(timeout=2 * self._every)

    # -- beside the loop

    def _attend(self) -> None:
        while not self._done.wait(self._every):
            if time.monotonic() - self._left_at > _AFTERWARDS:
                self._thread = None
                atexit.unregister(self._exits)
                return
            try:
                self._look()
            except Exception as error:
                self._recorder.failed("ranks", error)

    def _look(self) -> None:
        record = self.this_rank.record
        place = place_of(self._recorder.thread)
        moved = (place.moved, record.begun, self._recorder.history.number)
        if moved != self._place:
            self._place, self._since, self._spoken = moved, time.monotonic(), False
        record.where, record.talking = place.where, place.talking
        record.still = round(time.monotonic() - self._since, 2)
        record.step = self._recorder.steps.now
        self._tell()
        if record.still >= STILL and not self._spoken and not record.ended:
            self._speak(record)
        else:
            self._suspected = 0

    def _speak(self, record: RankRecord) -> None:
        """Say what is wrong while the ranks wait, where they cannot go on; the first of those that wait says it."""
        seen = self.seen()
        words = certain_words(seen) or (late_words(seen) if record.still >= self._patience else None)
        self._suspected = self._suspected + 1 if words else 0
        if words is None or self._suspected < 2:  # what was just being told may be told by now
            return
        self._spoken = True
        waiting = [each.rank for each in seen.records if each.waits]
        if record.rank == min(waiting, default=-1):
            _say(words)

    def _tell(self) -> None:
        with self._lock:
            record = self.this_rank.record
            record.beat += 1
            self._shelf.lay_down(replace(record, meetings=list(record.meetings)))

    # -- for reports

    def seen(self) -> RanksSeen:
        """Return what all ranks have told until now."""
        others = [rank for rank in self.this_rank.peers if rank != self.this_rank.record.rank]
        with self._lock:
            self._known.update({each.rank: each for each in self._shelf.of(others)})
        own = replace(self.this_rank.record)
        # One that was over before this one began is another: a rank may have watched something else before, by itself.
        every = {rank: each for rank, each in self._known.items() if not 0 < each.over < own.began}
        every[own.rank] = own
        return RanksSeen(own.rank, tuple(every[rank] for rank in sorted(every)))

    def seen_for_report(self) -> RanksSeen:
        """Return what all ranks have told; wait a moment for those that have not come so far as this one."""
        self._recorder.quietly("ranks", self.this_rank.numbers.read)
        self._tell()
        first, until = self.seen(), time.monotonic() + _FOR_REPORT
        seen = first
        while not self._is_complete(seen):
            patience = 0.0 if len(seen.records) > 1 else _FOR_REPORT - _FOR_FIRST
            if time.monotonic() > until - patience:
                return seen.without_those_silent_since(first)
            time.sleep(0.02)
            seen = self.seen()
        return seen

    def _is_complete(self, seen: RanksSeen) -> bool:
        own, others = seen.own, [each for each in seen.records if each.rank != seen.rank]
        if len(others) < len(self.this_rank.peers) - 1:
            return False
        if own.ended:  # then the others end, too, or wait for this one
            return all(each.ended or each.still >= STILL + self._every for each in others)
        return all(each.step >= own.step or each.still >= STILL for each in others)


def certain_words(seen: RanksSeen) -> str | None:
    """Say what keeps ranks from going on, if they cannot go on; None if they may."""
    stuck = seen.stuck()
    if stuck is not None and stuck.is_certain:
        return stuck.words
    met = seen.decided_apart()
    if met is None or not seen.all_wait:
        return None
    return "; ".join(
        f"rank {rank} is in {each.kind} of step {each.step} ({each.where})" for rank, each in met.items()
    )


def late_words(seen: RanksSeen) -> str | None:
    """Say who waits for whom, where that may be meant."""
    stuck = seen.stuck()
    return None if stuck is None else f"{stuck.words}. If that one comes late on purpose, nothing is wrong"


def _say(words: str) -> None:
    print(f"amp_lab.watch: the ranks wait for each other: {words}.", file=sys.stderr, flush=True)
