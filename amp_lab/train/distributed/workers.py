"""Processes that try something together: a function on each of a few ranks, with what became of each.

    outcomes = run_ranks(lambda rank: 10 * rank, ranks=2)
    [each.value for each in outcomes]      # [0, 10]

For experiments, checks and tests, on one machine; what trains for hours is started by torchrun. The processes come from
a server in which PyTorch is imported already, so that they are there in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

try:
    import cloudpickle
except ImportError:  # joblib, which scikit-learn brings, had a copy of its own before 1.6
    from joblib.externals import cloudpickle

# What takes seconds to import. Optimizers and DDP ask for `torch._dynamo` when the first of them is made.
_PRELOADED: Final = ["torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "numpy"]
_HOST: Final = "127.0.0.1"


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


def run_ranks(
    function: Callable[..., Any],
    ranks: int = 2,
    *args: Any,
    timeout: float = 60.0,
    collective_timeout: float = 30.0,
    grace: float = 3.0,
) -> list[Outcome]:
    """Call `function(rank, *args)` in so many processes that form a process group (gloo); return what became of each.

    Args:
        function: any function, of a notebook, too. It, its arguments and what it returns are sent as copies.
        ranks: how many processes, each with one thread.
        timeout: seconds for all. What has not ended then is killed, with every process that it has started.
        collective_timeout: seconds that a rank waits for the others in an all-reduce before it raises an error.
        grace: seconds that the others have to end by themselves once a rank has failed.

    Raises:
        ValueError: for less than one rank.
        RuntimeError: where processes cannot be started in this way (Windows; there, WSL can).
    """
    if ranks < 1:
        raise ValueError(f"run_ranks(ranks={ranks}): at least 1 process is needed")
    context = _context()
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)  # port 0: any that is free
    call = cloudpickle.dumps((function, args))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workers = []
        for rank in range(ranks):
            seat = _Seat(rank, ranks, store.port, collective_timeout, str(Path(folder) / str(rank)))
            workers.append(_Worker(context, seat, call))
            stack.callback(workers[-1].kill)
        with _no_main_module():
            for worker in workers:
                worker.start()
        _wait(workers, time.monotonic() + timeout, grace)
        return [worker.outcome() for worker in workers]


class _Seat(NamedTuple):
    """What a process must know to take its place."""

    rank: int
    size: int
    port: int
    collective_timeout: float
    path: str  # where its output goes; its stack, with ".stack" behind


class _Worker:
    """One process, and what is known of it."""

    def __init__(self, context: Any, seat: _Seat, call: bytes) -> None:
        self._seat = seat
        self.reader, self._writer = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(seat, call, self._writer), daemon=False)
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

    def hear(self) -> None:
        """Take what the process has sent, or that it has ended without a word."""
        try:
            self._end(pickle.loads(self.reader.recv_bytes()))
        except EOFError:
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
        value = pickle.loads(value) if ended == "returned" else None
        return Outcome(self._seat.rank, ended, value, error, trace, text, self._seconds)


def _wait(workers: Sequence[_Worker], deadline: float, grace: float) -> None:
    """Wait until all have ended, or until none of the others will."""
    ended = "timed out"
    while waiting := [worker for worker in workers if not worker.done]:
        left = deadline - time.monotonic()
        ready = multiprocessing.connection.wait([each.reader for each in waiting], max(left, 0))
        for worker in waiting:
            if worker.reader in ready:
                worker.hear()
        if ended == "timed out" and any(worker.failed for worker in workers):
            ended, deadline = "stopped", min(deadline, time.monotonic() + grace)
        if not ready and left <= 0:
            for worker in waiting:
                worker.give_up(ended)


def _work(seat: _Seat, call: bytes, results: Any) -> None:
    """Be one rank: this runs in the new process."""
    os.setsid()  # a group of its own, so that all that it starts can be killed with it
    threading.Thread(target=_end_with_the_program, daemon=True).start()
    _redirect_output(seat.path)
    with open(f"{seat.path}.stack", "w") as stack:
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        try:
            function, args = pickle.loads(call)
            with _group(seat):
                value = function(seat.rank, *args)
            message = ("returned", cloudpickle.dumps(value), "", "")
        except BaseException as error:
            last = traceback.format_exception_only(error)[-1].strip()
            message = ("raised", None, last, "".join(traceback.format_exception(error)))
        sys.stdout.flush()
        # Locks of multiprocessing (tqdm makes some) would outlive the process, and be complained about later.
        multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
        results.send_bytes(pickle.dumps(message))
        # Not to its end: threads of a group that has failed may wait for others for ever.
        os._exit(message[0] != "returned")


def _end_with_the_program() -> None:
    """End this process, and what it has started, once the program that has asked for it is gone, however it ended."""
    program = multiprocessing.parent_process()
    assert program is not None
    multiprocessing.connection.wait([program.sentinel])
    os.killpg(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _group(seat: _Seat) -> Iterator[None]:
    import torch

    torch.set_num_threads(1)
    timeout = timedelta(seconds=seat.collective_timeout)
    store = TCPStore(_HOST, seat.port, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=seat.rank, world_size=seat.size, timeout=timeout)
    dist.barrier()  # a rank that fails at once must not break the connections that another is still making
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _redirect_output(path: str) -> None:
    """Send all output of this process to a file: of Python, of libraries, and of processes that it starts."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise RuntimeError("run_ranks needs a forkserver, which Windows lacks: use WSL there")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep the new processes from running the script again that starts them: what they need is sent to them."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
