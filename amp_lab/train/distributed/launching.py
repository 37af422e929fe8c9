"""How the processes of a run are started, and what each of them is told.

Whoever starts them (torchrun, `spawn` here, a cluster's scheduler) sets the same environment variables in each: `RANK`,
`WORLD_SIZE`, `LOCAL_RANK`, and where to meet, `MASTER_ADDR` and `MASTER_PORT`.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.stores import TCPStore

_NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HOW: Final = (
    "Start it with `torchrun --standalone --nproc-per-node 2 -m amp_lab.train.ddp`, which sets them all, or with "
    "none of them for one process"
)
_SLOW: Final = ["torch._dynamo", "torch.nn.parallel"]  # what an optimizer and DDP import
_GRACE: Final = 10.0  # seconds that the others have to end by themselves


@dataclass(frozen=True)
class Launch:
    """What the environment says about a process of a run.

    Attributes:
        rank, size: which process this is, from 0, of how many.
        local_rank, local_size: the same on this machine.
        address, port: where the processes meet.
        hosted: whether somebody else hosts the store there, as torchrun does; else rank 0 does.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    hosted: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """Return what the environment says; None for a process that was started alone.

        Raises:
            LaunchError: if it says only a half, or what cannot be.
        """
        given = [name for name in _NEEDED if environment.get(name)]
        if not {"RANK", "WORLD_SIZE"} & set(given):  # an address alone says nothing
            return None
        if missing := [name for name in _NEEDED if name not in given]:
            raise LaunchError(
                f"the environment has {' and '.join(given)}, but no {', no '.join(missing)}. {_HOW}"
            )
        rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        local_rank = _number(environment, "LOCAL_RANK", rank)
        at_least = local_rank + 1 if environment.get("LOCAL_RANK") else size
        local_size = _number(environment, "LOCAL_WORLD_SIZE", at_least)
        if not (rank < size and local_rank < local_size <= size):
            raise LaunchError(
                f"RANK={rank} of WORLD_SIZE={size}, LOCAL_RANK={local_rank} of LOCAL_WORLD_SIZE={local_size}: a rank "
                f"is counted from 0 and is less than the number of processes. {_HOW}"
            )
        hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        address, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
        if not 0 < port < 65536:
            raise LaunchError(f"MASTER_PORT={port}: a port is a number from 1 to 65535. {_HOW}")
        if not _is_address(address):
            raise LaunchError(f"MASTER_ADDR={address!r} is no name and no address of a machine. {_HOW}")
        return cls(rank, size, local_rank, local_size, address, port, hosted)

    def environment(self) -> dict[str, str]:
        """Return the variables that say this."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": str(self.hosted),
        }


def spawn(program: Callable[..., int | None], ranks: int, *args: Any) -> int:
    """Start `ranks` processes on this machine that run `program(*args)`; wait for all of them.

    They meet at a store that this process hosts. The system gives it a free port: one that was looked for before it is
    taken may be somebody else's by then. Ctrl+C and SIGTERM are passed on. If a process fails, all are ended.

    Args:
        program: a function of a module, so that the others find it; it returns an exit code, or None.

    Returns:
        0 if all ended well; else the exit code of the first that did not.

    Raises:
        LaunchError: from inside a process that was itself started as one of several.
    """
    if Launch.read() is not None:
        raise LaunchError("--spawn starts processes, and torchrun has done so already: use one of the two")
    # Nobody has to come: a process that dies before it gets here would leave this one waiting.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Who loses the store says so in a line; C++ would add a page.
    more = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if ranks > 1:
        more["OMP_NUM_THREADS"] = "1"  # as torchrun does: with more, they take each other's cores
    with _inherited(more):
        started = start_processes(  # type: ignore[no-untyped-call]
            _child, (ranks, store.port, program, args), nprocs=ranks, join=False, start_method=_method()
        )
    with _passed_on(started.pids()):
        try:
            while not started.join(timeout=1.0, grace_period=_GRACE):
                pass
        except ProcessExitedException as error:
            return _ended(error)
    return 0


@contextlib.contextmanager
def _inherited(more: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are started in here find more in their environment, where nothing else is set."""
    new = {name: value for name, value in more.items() if name not in os.environ}
    os.environ |= new
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _method() -> str:
    """Return how to start processes: CUDA does not survive a fork of this one, so by a server that never uses it.

    The server imports once for all what takes seconds; "spawn" would in each process. Not on macOS, whose library of
    linear algebra (Accelerate) does not survive a fork once it is in use.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return "spawn"
    multiprocessing.set_forkserver_preload(_SLOW)
    return "forkserver"


def _child(
    rank: int, ranks: int, port: int, program: Callable[..., int | None], args: tuple[Any, ...]
) -> None:
    os.environ |= Launch(rank, ranks, rank, ranks, "127.0.0.1", port, hosted=True).environment()
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    sys.exit(program(*args))


def _end_with(parent: Any) -> None:
    """Stop this process when the one that started it has ended: killed, it could not do so itself."""
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _ended(error: ProcessExitedException) -> int:
    code = int(error.exit_code)
    if code >= 0:
        return code  # it has said why
    print(
        f"rank {error.error_index} was ended by {error.signal_name}, and the others with it. The same command goes on "
        "from the last checkpoint, if there is one (--checkpoints).",
        file=sys.stderr,
        flush=True,
    )
    return 128 - code


@contextlib.contextmanager
def _passed_on(pids: list[int]) -> Iterator[None]:
    """Pass Ctrl+C and SIGTERM on to other processes, which decide what to do."""

    def pass_on(number: int, frame: object) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _is_address(text: str) -> bool:
    try:
        return bool(text.encode("idna")) and not any(letter.isspace() for letter in text)
    except UnicodeError:  # "a..b", or a part of more than 63 letters
        return False


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name) or str(default)
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise LaunchError(f"{name}={text!r} is no number. {_HOW}")
    return number
