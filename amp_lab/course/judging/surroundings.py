"""What checked code finds around it: output that is kept, no keyboard, and no way to end the kernel."""

from __future__ import annotations

import builtins
import contextlib
import getpass
import io
import os
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

# Where installed packages lie; PyTorch's own place counts even if it was installed in an unusual way.
PACKAGES = tuple(
    str(path) + os.sep
    for path in (
        Path(torch.__file__).parents[1],
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    )
)
_THREADS_MAY_END_S = 0.1


class Refused(BaseException):
    """Raised in place of what checked code may not do; no Exception, lest `except Exception` hides it."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"a check does not allow this ({fault})")
        self.fault = fault


class Output(io.TextIOBase):
    """Stands in for stdout and stderr: keeps the first characters and counts the rest.

    Whoever keeps hold of it longer than the call lasts, as a log handler does, goes on to write to the real stderr.
    """

    encoding = "utf-8"

    def __init__(self, limit: int) -> None:
        self._room = limit
        self.kept = ""
        self.dropped = 0
        self.listening = False

    def write(self, text: str) -> int:
        """Take a text of any length, keep what there is room for."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self.listening:
            return sys.stderr.write(text)
        part = text[: self._room]
        if part:
            self.kept += part
            self._room -= len(part)
        self.dropped += len(text) - len(part)
        return len(text)

    def writable(self) -> bool:
        """Say yes, as stdout does."""
        return True

    def close(self) -> None:
        """Stay open: the next call prints here, too."""


class _NoKeyboard(io.TextIOBase):
    """Stands in for stdin."""

    encoding = "utf-8"

    def read(self, size: int | None = -1) -> NoReturn:
        raise Refused("input")

    def readline(self, size: int = -1) -> NoReturn:  # type: ignore[override]
        raise Refused("input")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Stay open: Python's own `exit()` closes stdin before it raises SystemExit."""


@contextlib.contextmanager
def surroundings(output: Output, threads: Collection[threading.Thread]) -> Iterator[None]:
    """Redirect what is printed to `output`, and refuse what would end the kernel or wait for an answer.

    `threads` are those that run already: ending the process is not refused to them.
    """

    def ask(*_args: object, **_kwargs: object) -> NoReturn:
        raise Refused("input")

    def leave(*_args: object, **_kwargs: object) -> NoReturn:
        raise SystemExit

    def show(message: Warning | str, category: type[Warning], *_args: object, **_kwargs: object) -> None:
        output.write(f"{category.__name__}: {message}\n")

    others = {thread.ident for thread in threads} - {threading.get_ident()}
    patches: list[tuple[Any, str, object]] = [
        (sys, "stdout", output),
        (sys, "stderr", output),
        (sys, "stdin", _NoKeyboard()),
        (warnings, "showwarning", show),
        # With filters that turn warnings into errors, a verdict would depend on who runs the check.
        (warnings, "filters", [entry for entry in warnings.filters if entry[0] != "error"]),
        (builtins, "input", ask),
        (getpass, "getpass", ask),
        (os, "_exit", _refuse_to_learner(os._exit, others)),
        (os, "abort", _refuse_to_learner(os.abort, others)),
        # In a kernel `exit` is an object of IPython's, which tells the kernel to shut down.
        *((kind, "__call__", leave) for kind in _ipython_exits()),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        output.listening = True
        yield
    finally:
        output.listening = False
        for owner, name, value in before:
            setattr(owner, name, value)


def _refuse_to_learner(
    end: Callable[..., NoReturn], others: Collection[int | None]
) -> Callable[..., NoReturn]:
    process = os.getpid()

    def refuse(*args: Any) -> NoReturn:
        # A forked child must end this way, and a thread of the kernel's own has its reasons.
        if os.getpid() != process or threading.get_ident() in others:
            end(*args)
        raise Refused("os-exit")

    return refuse


def _ipython_exits() -> list[type]:
    module = sys.modules.get("IPython.core.autocall")
    found = vars(module).values() if module else ()
    return [kind for kind in found if isinstance(kind, type) and "__call__" in vars(kind)]


def left_running(before: Collection[threading.Thread]) -> list[threading.Thread]:
    """Return the new threads that still run after 0.1 s of grace, but none that runs a library's function."""
    started = [thread for thread in threading.enumerate() if thread not in before]
    deadline = time.monotonic() + _THREADS_MAY_END_S
    for thread in started:
        with contextlib.suppress(RuntimeError):  # a thread that C++ code started cannot be waited for
            threading.Thread.join(thread, max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames() if started else {}
    return [
        thread for thread in started if thread.ident in frames and _runs_learner_code(frames[thread.ident])
    ]


def _runs_learner_code(frame: FrameType | None) -> bool:
    """Judge by a thread's first function: tqdm's monitor and PyTorch's workers begin in a package."""
    first = ""
    while frame is not None:
        if frame.f_code.co_filename != threading.__file__:
            first = frame.f_code.co_filename
        frame = frame.f_back
    return not first.startswith(PACKAGES)
