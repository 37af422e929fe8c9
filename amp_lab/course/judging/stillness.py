"""For how long a process has computed nothing: neither its main thread, nor its other threads, nor its children."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

_MAIN_S = 1e-3  # of its main thread: a thread that waits is woken now and then, and needs less
_IDLE_SHARE = (
    0.05  # of the time, of all threads or of the children; whoever computes for more than that works
)


class Stillness:
    """A watch over this process; `span_s` is how many seconds it takes to tell who works from who does not.

    A step between two pauses takes a millisecond, so a loop that sleeps in each step is seen to get on. A rank that
    waits in an exchange needs less than that in many seconds.
    """

    def __init__(self, span_s: float) -> None:
        ident = threading.main_thread().ident
        assert ident is not None
        self.main = ident
        self._span_s, self._main_clock = span_s, _clock_of(ident)
        self._children, self._asked = 0.0, 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._since, self._worked, self._main_worked = (
            time.monotonic(),
            time.process_time(),
            self._main_clock(),
        )

    def seconds(self) -> float:
        """Return for how long nothing has been computed."""
        share = _IDLE_SHARE * self._span_s
        if self._main_clock() - self._main_worked > _MAIN_S or time.process_time() - self._worked > share:
            self.begin()
        now = time.monotonic()
        if (
            now - self._since > self._span_s and now - self._asked > self._span_s
        ):  # it takes long to ask for children
            self._asked, before, self._children = now, self._children, _work_of_children()
            if self._children - before > share:  # a DataLoader's workers, say
                self.begin()
        return time.monotonic() - self._since


def _clock_of(thread: int) -> Callable[[], float]:
    """Return a clock of how many seconds a thread has computed; it stands where the system has none (macOS)."""
    if hasattr(time, "pthread_getcpuclockid"):
        return functools.partial(time.clock_gettime, time.pthread_getcpuclockid(thread))
    return lambda: 0.0


def _work_of_children() -> float:
    """Return for how many seconds the processes that this one has started, and those of theirs, have computed."""
    seconds = 0.0
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(each.cpu_times()[:2])
    return seconds
