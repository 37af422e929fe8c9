"""A process of `run_ranks`, as the one sees it that has started it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from amp_lab.train.distributed.in_worker import Seat, work


class Outcome(NamedTuple):
    """What became of one rank.

    Attributes:
        rank: its number, from 0.
        ended: "returned"; "raised"; "died", without a word: by `os._exit` or a signal; "timed out"; or "stopped",
            because another rank had failed.
        value: what the function returned; None if it did not.
        error: "ValueError: no such thing", or for other ends where it was; "" if it returned.
        traceback: the whole of it, or the stack in which it was found when its time was over.
        output: all that it printed, errors and warnings, too.
        seconds: how long it took.
    """

    rank: int
    ended: str
    value: Any
    error: str
    traceback: str
    output: str
    seconds: float


class Worker:
    """One process, and what is known of it."""

    def __init__(self, context: Any, seat: Seat, call: bytes) -> None:
        self._seat = seat
        self.reader, self._writer = context.Pipe(duplex=False)
        self._process = context.Process(target=work, args=(seat, call, self._writer), daemon=False)
        self._started, self._seconds = 0.0, 0.0
        self._message: tuple[str, Any, str, str] | None = None

    def start(self) -> None:
        self._started = time.monotonic()
        self._process.start()
        self._writer.close()  # the process has its own end; so this one is at its end when the process is

    @property
    def done(self) -> bool:
        return self._message is not None

    @property
    def failed(self) -> bool:
        return self._message is not None and self._message[0] != "returned"

    @property
    def signs(self) -> list[Any]:
        """What is ready as soon as there is something to hear: a message, or the end of the process.

        Its end of the pipe may live on, in a process that it has started.
        """
        return [self.reader, self._process.sentinel]

    def hear(self) -> None:
        """Take what the process has sent, or that it has ended without a word."""
        try:
            if self.reader.poll():
                return self._end(pickle.loads(self.reader.recv_bytes()))
        except EOFError:
            pass
        self._process.join()
        self._end(("died", None, _how_it_died(self._process.exitcode), ""))

    def give_up(self, ended: str) -> None:
        """Note where the process is, which has not ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        path = Path(f"{self._seat.path}.stack")
        stack = _read_when_written(path)
        self._end((ended, None, _innermost(stack), stack))

    def _end(self, message: tuple[str, Any, str, str]) -> None:
        self._message, self._seconds = message, time.monotonic() - self._started

    def kill(self) -> None:
        """End the process and what it has started."""
        if self._process.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.is_alive():
            self._process.kill()  # it had no group of its own yet
        self._process.join()
        self._process.close()
        self.reader.close()

    def outcome(self) -> Outcome:
        assert self._message is not None
        ended, value, error, trace = self._message
        output = Path(self._seat.path)
        text = output.read_text(errors="replace") if output.exists() else ""
        try:
            value = pickle.loads(value) if ended == "returned" else None
        except Exception as problem:
            ended, value = "raised", None
            error = f"what it returned cannot be read here: {type(problem).__name__}: {problem}"
        return Outcome(self._seat.rank, ended, value, error, trace, text, self._seconds)


def _how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}, without a word"


def _read_when_written(path: Path) -> str:
    """Return the stack that a process writes when it is asked to; "" if it does not within a second."""
    before = -1
    for _ in range(20):
        time.sleep(0.05)
        size = path.stat().st_size if path.exists() else 0
        if size and size == before:
            break
        before = size
    return path.read_text(errors="replace") if path.exists() else ""


def _innermost(stack: str) -> str:
    """Return where a process is, of the stack that faulthandler wrote: its innermost line."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return f"in {lines[0]}" if lines else "nothing is known of where it was"
