"""What runs in a process of `run_ranks`: it becomes one of the ranks, calls the function, and tells how that ended."""

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
import threading
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from amp_lab.train.distributed.packing import packed
from amp_lab.train.distributed.stores import TCPStore

HOST: Final = "127.0.0.1"


class Seat(NamedTuple):
    """What a process must know to take its place."""

    rank: int
    size: int
    port: int
    collective_timeout: float
    path: str  # where its output goes; its stack, with ".stack" behind


def work(seat: Seat, call: bytes, results: Any) -> None:
    """Be one rank: this runs in the new process."""
    os.setsid()  # a group of its own, so that all that it starts can be killed with it
    # What it starts itself begins as in any other program: by fork, where that is the default.
    multiprocessing.set_start_method(None, force=True)
    threading.Thread(target=end_with_the_program, daemon=True).start()
    _redirect_output(seat.path)
    with open(f"{seat.path}.stack", "w") as stack:
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        try:
            function, args = pickle.loads(call)
            with _group(seat):
                # gloo of older versions of PyTorch has said there that it is connected.
                os.truncate(seat.path, 0)
                value = function(seat.rank, *args)
            message: tuple[str, bytes | None, str, str] = ("returned", packed(value), "", "")
        except BaseException as error:
            last = traceback.format_exception_only(error)[-1].strip()
            message = ("raised", None, last, "".join(traceback.format_exception(error)))
        with contextlib.suppress(OSError, ValueError):  # the function may have closed it
            sys.stdout.flush()
        # Locks of multiprocessing (tqdm makes some) would outlive the process, and be complained about later.
        multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
        results.send_bytes(pickle.dumps(message))
        # Not to its end: threads of a group that has failed may wait for others for ever.
        os._exit(message[0] != "returned")


def end_with_the_program() -> None:
    """End this process, and what it has started, once the program that has asked for it is gone, however it ended."""
    program = multiprocessing.parent_process()
    assert program is not None
    multiprocessing.connection.wait([program.sentinel])
    os.killpg(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _group(seat: Seat) -> Iterator[None]:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=seat.collective_timeout)
    store = TCPStore(HOST, seat.port, is_master=False, timeout=timeout)
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
