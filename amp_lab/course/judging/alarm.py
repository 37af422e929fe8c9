"""Stopping code that does not stop of its own: a time limit and the stop button, for code in the main thread.

A timer sends SIGALRM when the time is up, and Python then runs our handler between two instructions of
whatever it was executing. The handler may raise: that is how an endless loop ends. Three things make this
safe and certain.

- It raises only while the guarded function is on the stack (`_in_guarded_code`), so that a late alarm can
  never hit the code that cleans up afterwards.
- `while True: try: ... except BaseException: pass` catches what the handler raises. Python deletes an
  exception once it is dealt with, and `Stop.__del__` makes use of that: it traces the frames that swallowed
  the stop, and the trace function raises the next one before their next instruction, outside of the `try`.
- Should code keep the exception (in a list, say), the alarm comes again every millisecond, until one finds
  it outside of its `try`.

The stop button (SIGINT) goes the same way: a bare `except:` cannot swallow it, and it cannot interrupt a
clean-up.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal

AGAIN_S = 0.001
_WITHOUT_US_S = 0.05  # the timer's own interval, for code so deep in recursion that our handler cannot run
_SHORTEST_S = 1e-5  # setitimer takes 0 as "switch the timer off"


class Stop(BaseException):
    """Raised inside guarded code, with its `Alarm`, to end it; `Alarm.run` catches it."""

    def __str__(self) -> str:
        return "the check stopped this code"

    def __del__(self) -> None:
        self.args[0]._swallowed(sys._getframe().f_back)


class Alarm:
    """Runs functions of which none can outlive the time limit or the stop button.

    Use: `with alarm.stop_button(), alarm.limit(seconds): value, error = alarm.run(function, *args)`.
    Then `why` tells what stopped the code, if anything did.
    """

    def __init__(self) -> None:
        self.why: Literal["timeout", "interrupted"] | None = None
        self._deadline = math.inf
        self._floor: FrameType | None = None  # the frame of `run`: guarded code runs above it
        self._ticking = False

    @staticmethod
    def available() -> bool:
        """Return whether a limit can be kept here: Python runs signal handlers in the main thread only."""
        return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    def run(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> tuple[Any, BaseException | None]:
        """Return what `function` returned and what it raised, one of them None. Nothing escapes from here."""
        self._floor = sys._getframe()
        try:
            return _enter(function, args, kwargs), None
        except BaseException as error:
            return None, error
        finally:
            self._floor = None

    @contextlib.contextmanager
    def stop_button(self) -> Iterator[None]:
        """Let SIGINT stop guarded code; while other code runs it is only noted, in `why`."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGINT) is None:
            yield
            return
        handler = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Stop guarded code after `seconds`. A timer and a handler of others are put back at the end."""
        if not self.available() or signal.getsignal(signal.SIGALRM) is None:
            yield
            return
        start, trace = time.perf_counter(), sys.gettrace()
        their_delay, their_interval = signal.setitimer(signal.ITIMER_REAL, 0)
        handler = signal.signal(signal.SIGALRM, self._on_alarm)
        self._deadline = start + seconds
        self._ticking = True
        self._ring_in(seconds)
        if self.why is not None:  # the stop button was quicker than we
            self._ring_in(AGAIN_S)
        try:
            yield
        finally:
            self._ticking = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            if sys.gettrace() is not trace:
                sys.settrace(trace)
            signal.signal(signal.SIGALRM, handler)
            if their_delay:
                left = their_delay - (time.perf_counter() - start)
                signal.setitimer(signal.ITIMER_REAL, max(left, _SHORTEST_S), their_interval)

    def _on_alarm(self, _signal: int, frame: FrameType | None) -> None:
        # Time may be left: the guarded code can have set an alarm of its own.
        left = self._deadline - time.perf_counter() if self.why is None else 0.0
        self._ring_in(max(left, AGAIN_S))
        if left <= 0 and self._in_guarded_code(frame):
            self.why = self.why or "timeout"
            raise Stop(self)

    def _on_interrupt(self, _signal: int, frame: FrameType | None) -> None:
        self.why = "interrupted"
        self._ring_in(AGAIN_S)
        if self._in_guarded_code(frame):
            raise Stop(self)

    def _ring_in(self, seconds: float) -> None:
        # Set anew each time: a timer that repeats by itself may ring while the system is still delivering its
        # last signal, which then goes to another thread and can arrive here after the old handler is back.
        if self._ticking:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, _SHORTEST_S), _WITHOUT_US_S)

    def _swallowed(self, frame: FrameType | None) -> None:
        if not self._in_guarded_code(frame):
            return
        while frame is not None and frame is not self._floor:
            frame.f_trace = self._trace
            frame.f_trace_opcodes = True
            frame = frame.f_back
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, _event: str, _arg: object) -> None:
        # Python ends tracing when a trace function raises; the deletion of this Stop starts it again.
        if self._in_guarded_code(frame):
            raise Stop(self)

    def _in_guarded_code(self, frame: FrameType | None) -> bool:
        """Return whether `frame` runs above `run`, and not in a handler of ours."""
        if frame is self._floor:
            return False
        while frame is not None and frame is not self._floor:
            if frame.f_code in _HANDLERS:
                return False
            frame = frame.f_back
        return frame is not None


def _enter(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A frame of its own above `run`: a function written in C has none in which an alarm could raise.
    return function(*args, **kwargs)


_HANDLERS = {
    Alarm._on_alarm.__code__,
    Alarm._on_interrupt.__code__,
    Alarm._trace.__code__,
    Stop.__del__.__code__,
}
