"""Processes that try something together: a function on each of a few ranks, with what became of each.

    outcomes = run_ranks(lambda rank: 10 * rank, ranks=2)
    [each.value for each in outcomes]      # [0, 10]

For experiments, checks and tests, on one machine; what trains for hours is started by torchrun. The processes come from
a server in which PyTorch is imported already, so that they are there in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from amp_lab.train.arguments import as_size
from amp_lab.train.distributed.in_worker import HOST, Seat
from amp_lab.train.distributed.one_worker import Outcome, Worker
from amp_lab.train.distributed.packing import packed
from amp_lab.train.distributed.stores import TCPStore

__all__ = ["Outcome", "run_ranks"]

# What takes seconds to import. Optimizers and DDP ask for `torch._dynamo` when the first of them is made.
_PRELOADED: Final = ["torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "numpy"]


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
        ValueError: for a number of ranks that is none.
        RuntimeError: where processes cannot be started in this way (Windows; there, WSL can).
    """
    ranks = as_size("run_ranks", "ranks", ranks)
    context = _context()
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # port 0: any that is free
    call = packed((function, args))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workers = []
        for rank in range(ranks):
            seat = Seat(rank, ranks, store.port, collective_timeout, str(Path(folder) / str(rank)))
            workers.append(Worker(context, seat, call))
            stack.callback(workers[-1].kill)
        with _no_main_module():
            for worker in workers:
                worker.start()
        _wait(workers, time.monotonic() + timeout, grace)
        return [worker.outcome() for worker in workers]


def _wait(workers: Sequence[Worker], deadline: float, grace: float) -> None:
    """Wait until all have ended, or until none of the others will."""
    ended = "timed out"
    while waiting := [worker for worker in workers if not worker.done]:
        left = deadline - time.monotonic()
        signs = [sign for worker in waiting for sign in worker.signs]
        ready = multiprocessing.connection.wait(signs, max(left, 0))
        for worker in waiting:
            if any(sign in ready for sign in worker.signs):
                worker.hear()
        if ended == "timed out" and any(worker.failed for worker in workers):
            ended, deadline = "stopped", min(deadline, time.monotonic() + grace)
        if not ready and left <= 0:
            for worker in waiting:
                worker.give_up(ended)


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
