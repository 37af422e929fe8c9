"""Running a learner's function inside the kernel, so that it can neither hang nor kill it.

`Guard.call` calls the function and returns what it returned, or raises `Contained`, whose sentence tells the
learner what their code did instead: an endless loop, an exception, a call of `exit()` or `input()`, recursion
without end. The time limit and the stop button are in `alarm`, what the code finds around it (its output is
kept) in `surroundings`, what is put back after it in `restore`.

A guard inside the process cannot do everything. What is left, and what the course tells learners to restart the
kernel for: one long call inside C code (such as `sum(iter(int, 1))`); a function that calls itself without end and
catches every error that this raises; code that took a function away before the check (`from os import _exit`) or
that handles SIGALRM itself; a crash in native code; memory that runs out. Processes that the code started run on.
"""

from __future__ import annotations

import linecache
import math
import os
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, ClassVar

from amp_lab.course.judging import alarm
from amp_lab.course.judging.restore import put_back
from amp_lab.course.judging.surroundings import PACKAGES, Output, Refused, left_running, surroundings

_SENTENCES = {
    "timeout": "Your code was still running after {limit} and was stopped{where}. "
    "Look for a loop that never ends, or for work that is far too much.",
    "exit": "Your code called `exit()`{where}, which ends Python. Let it return its result instead.",
    "os-exit": "Your code called `os._exit()` or `os.abort()`{where}, which end Python at once. "
    "Let it return its result instead.",
    "input": "Your code waits for input from the keyboard{where}. "
    "Take the value from the arguments of your function instead.",
    "recursion": "Your code called itself again and again until Python stopped it{where}. "
    "Every call must come closer to a case that returns without another call.",
    "interrupted": "Your code raised KeyboardInterrupt{where}, which is for the stop button. "
    "Raise another exception.",
    "stop button": "The check was interrupted{where}. Run the cell again when you are ready.",
    "exception": "Your code raised {message}{where}.",
}
_MESSAGE_LENGTH = 300
_LINE_LENGTH = 100
# Frames from these files are not the learner's: installed packages, Python's own library, this package.
_THIS_PACKAGE = Path(__file__).parents[2]
_NOT_THEIRS = (*PACKAGES, sysconfig.get_path("stdlib") + os.sep, f"{_THIS_PACKAGE}{os.sep}", "<frozen ")
# One at a time: output, settings and signal handlers belong to the whole process.
_IN_USE = threading.Lock()


class Contained(Exception):
    """What a learner's code did instead of returning.

    `fault` is 'timeout', 'exit', 'os-exit', 'input', 'recursion', 'interrupted' or 'exception'. `sentence`
    tells the learner what happened, where in their code, and what to do. `error` is the exception that their
    code raised, with a traceback that begins in their code; None if the guard stopped the code. `message` is its type
    and message in one line.
    """

    def __init__(
        self, fault: str, sentence: str, error: BaseException | None = None, message: str = ""
    ) -> None:
        super().__init__(sentence)
        self.fault = fault
        self.sentence = sentence
        self.error = error
        self.message = message


class Guard:
    """Calls a learner's functions; all calls of one guard share `limit_s` seconds.

    Only time spent in the learner's code counts. `output_limit` is in characters, for stdout and stderr
    together. Raises ValueError for a limit that makes no sense.
    """

    NO_LIMIT: ClassVar[str] = (
        "This check ran without a time limit: Python can keep one only on Linux and macOS, in the main "
        "thread. If your code hangs: menu Kernel → Interrupt Kernel, then Restart Kernel."
    )

    def __init__(self, limit_s: float = 20.0, output_limit: int = 2000) -> None:
        if not 0 < limit_s < math.inf:
            raise ValueError(f"limit_s must be a positive number of seconds, not {limit_s!r}")
        if output_limit < 0:
            raise ValueError(f"output_limit must be a number of characters, not {output_limit!r}")
        self._limit_s = limit_s
        self._left_s = limit_s
        self._output = Output(output_limit)
        self._threads: list[threading.Thread] = []

    @property
    def output(self) -> str:
        """The first `output_limit` characters that the learner's code printed, its warnings included."""
        return self._output.kept

    @property
    def output_dropped(self) -> int:
        """How many characters more it printed."""
        return self._output.dropped

    @property
    def leftover_threads(self) -> tuple[str, ...]:
        """Names of threads that calls left running; those of libraries (tqdm's monitor) are not listed."""
        return tuple(thread.name for thread in self._threads)

    @property
    def time_limited(self) -> bool:
        """Whether the limit can be kept here; if not, `NO_LIMIT` is the sentence to show."""
        return alarm.Alarm.available()

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`.

        Raises Contained if it does not return, or returns after the time was up, and RuntimeError inside of
        another guarded call. Modes are put back, so empty a generator in one call: `call(list, it)`.
        """
        clock = alarm.Alarm()
        # The stop button is taken over first and given back last, so it cannot interrupt our own code.
        with clock.stop_button():
            if not _IN_USE.acquire(blocking=False):
                raise RuntimeError("a check is running already: move check() out of the checked function")
            try:
                value, error, message = self._run(clock, function, args, kwargs)
            finally:
                _IN_USE.release()
        if clock.why is not None or error is not None:
            raise self._contained(clock.why, error, message)
        return value

    def _run(
        self, clock: alarm.Alarm, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, BaseException | None, str]:
        if self._left_s <= 0:
            clock.why = "timeout"
            return None, None, ""
        message = ""
        process, end_process = os.getpid(), os._exit
        threads = set(threading.enumerate())
        with put_back(), surroundings(self._output, threads), clock.limit(self._left_s):
            start = time.perf_counter()
            value, error = clock.run(function, *args, **kwargs)
            self._left_s -= time.perf_counter() - start
            if os.getpid() != process:  # a child that the code forked must not live on as a second kernel
                end_process(0 if error is None else 1)
            if error is not None:  # its class may be the learner's, and so may be its __str__
                message = clock.run(_message, error)[0] or f"{type(error).__name__} (no readable message)"
        self._threads += left_running(threads)
        return value, error, message

    def _contained(self, why: str | None, error: BaseException | None, message: str) -> Contained:
        fault = why or _fault(error)
        sentence = _SENTENCES["stop button" if why == "interrupted" else fault]
        text = sentence.format(where=_where(error), limit=_seconds(self._limit_s), message=message)
        if why is not None or error is None or isinstance(error, Refused):
            return Contained(fault, text)
        theirs = BaseException.with_traceback(error, _their_part(error.__traceback__))
        return Contained(fault, text, theirs, message)


def still_running(limit_s: float) -> str:
    """Return the sentence about code that was stopped after so many seconds, no one knows where."""
    return _SENTENCES["timeout"].format(limit=_seconds(limit_s), where="")


def _fault(error: BaseException | None) -> str:
    match error:
        case Refused():
            return error.fault
        case SystemExit():
            return "exit"
        case RecursionError():
            return "recursion"
        case KeyboardInterrupt():
            return "interrupted"
    return "exception"


def _message(error: BaseException) -> str:
    """Return type and message of an error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, BaseExceptionGroup):
        text += f"; the first is {_message(error.exceptions[0])}"
    name = type(error).__name__
    return f"{name}: {_cut(text, _MESSAGE_LENGTH)}" if text else name


def _where(error: BaseException | None) -> str:
    """Return the learner's deepest line that the error passed, numbered as in Jupyter's tracebacks."""
    place = None
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        # A few instructions that Python adds by itself belong to no line.
        if trace.tb_lineno is not None and not trace.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
            place = trace
        trace = trace.tb_next
    return "" if place is None else _line(place.tb_frame.f_code, place.tb_lineno)


def standing(frame: FrameType | None) -> str:
    """Return the learner's innermost line on a stack, in words: where code is that does not come back."""
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    return "" if frame is None else _line(frame.f_code, frame.f_lineno)


def _line(code: CodeType, number: int) -> str:
    line = linecache.getline(code.co_filename, number).strip()
    # The parts in angle brackets are Python's names for what has none: <locals>, <lambda>, <listcomp>.
    name = ".".join(part for part in code.co_qualname.split(".") if not part.startswith("<")) or "a lambda"
    if code.co_name == "<module>":
        return f" (line {number}: `{_cut(line, _LINE_LENGTH)}`)" if line else f" (line {number})"
    return f" (line {number}, in {name}: `{_cut(line, _LINE_LENGTH)}`)" if line else f" (in {name})"


def _their_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (alarm.__file__, __file__):
        trace = trace.tb_next
    return trace


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _seconds(limit: float) -> str:
    return "1 second" if limit == 1 else f"{limit:g} seconds"
