"""Ctrl+C and SIGTERM: the first one asks the run to stop after a step, the second one breaks it off."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from amp_lab.train.distributed.missing import Listener
from amp_lab.train.distributed.places import SAVING
from amp_lab.train.distributed.pulse import Pulse

_REASONS: Final = {signal.SIGINT: "Ctrl+C, SIGINT", signal.SIGTERM: "SIGTERM"}
_SIGNALS: Final = tuple(_REASONS)
_ONE: Final = 1.0  # seconds: a terminal and a launcher may both pass on the same Ctrl+C
_GRACE: Final = 20.0  # seconds for a step to end; launchers kill after 30
_LATER: Final = 2.0
_LOOK: Final = 0.2


def leave_signals(worker: int) -> None:
    """Let a DataLoader's worker process go on when Ctrl+C reaches it, too: `DataLoader(..., worker_init_fn=...)`.

    A terminal sends Ctrl+C to all processes. The one that reads from the worker decides what to do, and ends it.
    """
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)


class Stopping:
    """In a `with` block, the first signal calls `stop`, and a second one raises KeyboardInterrupt.

    A rank that waits for another one runs no Python, and would not see a signal. So a thread looks after it. It ends
    the process if a signal has come, and then another rank is gone, or a second signal changes nothing, or after
    SIGTERM no step ends for 20 seconds.

    Args:
        stop: called with the reason, "SIGTERM" or "Ctrl+C, SIGINT".
        pulse: knows how far this rank is, and has the board on which the others write.

    Attributes:
        signal: the one that came; None if none has.
    """

    def __init__(self, stop: Callable[[str], object], pulse: Pulse) -> None:
        self._stop, self._pulse = stop, pulse
        self.signal: signal.Signals | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def exit_code(self, reason: str = "") -> int:
        """What a shell expects of a process that a signal has ended: 130 after Ctrl+C, 143 after SIGTERM.

        Args:
            reason: why the run was stopped, if another rank has got the signal.
        """
        other = signal.SIGINT if "SIGINT" in reason else signal.SIGTERM
        return 128 + int(self.signal or other)

    def __enter__(self) -> Stopping:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread gets signals
        # Python writes a byte there when a signal comes, even if the main thread is not in Python.
        self._ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._theirs = theirs
        self._wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._before = {each: signal.signal(each, self._asked) for each in _SIGNALS}
        self._end = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="amp_lab signals", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, where: TracebackType | None) -> None:
        if not self._before:
            return
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._end.set()
        self._theirs.close()  # wakes the thread
        self._watcher.join(5)
        self._ours.close()

    def _asked(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._since = signal.Signals(number), now
            self._stop(_REASONS[self.signal])
        elif now - self._since > _ONE:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        if not (came := self._ours.recv(1)):
            return  # the block is over
        number, first = came[0], time.monotonic()
        step, moved, alone, again = self._pulse.step, first, math.inf, math.inf
        others = Listener(self._pulse.board)
        while not self._end.wait(_LOOK):
            now = time.monotonic()
            if self._pulse.step != step or self._pulse.place.doing.startswith(SAVING):
                step, moved = self._pulse.step, now
            alone = min(alone, now) if others.misses() else math.inf
            if select.select([self._ours], [], [], 0)[0] and self._ours.recv(64) and now - first > _ONE:
                again = min(again, now)
            stuck = number == signal.SIGTERM and self._pulse.board.size > 1 and now - moved > _GRACE
            # Somewhat later: a rank that can end by itself does so, and says more. A long save is waited for.
            if stuck or now - min(max(alone, moved), again) > _LATER:
                os._exit(128 + number)
