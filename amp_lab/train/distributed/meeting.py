"""The store where the processes of a run meet: a server on one of them, or of who has started them, and its clients."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import Any, Final

from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.failures import first_line
from amp_lab.train.distributed.launching import Launch
from amp_lab.train.distributed.stores import TCPStore

_PAUSE: Final = 0.1  # seconds from one try to the next


def opened(launch: Launch, timeout: float) -> Any:
    """Return the store where the processes meet; rank 0 opens it, unless who started them has done so.

    Raises:
        LaunchError: on rank 0, if the port is taken or the address is that of another machine; on another rank, if
            nobody is there in so many seconds.
    """
    if launch.rank or launch.hosted:
        return client(launch, timeout)
    try:
        # By way of this machine: what C++ says of a wrong address is pages long. And it need not wait here for the
        # others: the roll call does, and knows their names.
        store = TCPStore(
            "127.0.0.1",
            launch.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise LaunchError(
                f"rank 0 cannot open MASTER_PORT={launch.port}: take a free port from 1024 on. ({first_line(error)})"
            ) from None
        raise LaunchError(
            f"MASTER_PORT={launch.port} is taken on {socket.gethostname()}, by another run? Set another one for all "
            "ranks, or let the system find one: torchrun --standalone, or --spawn"
        ) from None
    try:
        _connect(launch)
    except OSError as error:
        raise LaunchError(
            f"rank 0 runs on {socket.gethostname()}, which is not reached by MASTER_ADDR={launch.address} "
            f"({_reason(error)}): give the name or address of this machine to all ranks"
        ) from None
    return store


def client(launch: Launch, timeout: float) -> Any:
    """Return a client of the store, once somebody listens there.

    Raises:
        LaunchError: if nobody does in so many seconds, or something else.
    """
    _knock(launch, timeout)
    found: list[Any] = []

    def connect() -> None:
        try:
            wait = timedelta(seconds=timeout)
            found.append(TCPStore(launch.address, launch.port, is_master=False, timeout=wait))
        except RuntimeError as error:
            found.append(error)

    # In a thread: somebody who listens and never answers would keep it for ever, whatever the timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    if found and not isinstance(found[0], RuntimeError):
        return found[0]
    reason = f" ({first_line(found[0])})" if found else ""
    raise LaunchError(
        f"rank {launch.rank}: at {launch.address}:{launch.port}, something answers that is not PyTorch's store"
        f"{reason}. Set another MASTER_PORT for all ranks"
    )


def _knock(launch: Launch, timeout: float) -> None:
    """Wait until somebody listens. The store's client would do that, too, but prints pages while it does."""
    end = time.monotonic() + timeout
    while True:
        try:
            return _connect(launch)
        except OSError as error:
            if time.monotonic() > end:
                raise LaunchError(
                    f"rank {launch.rank}: for {timeout:g} s, nobody was at MASTER_ADDR={launch.address}, "
                    f"MASTER_PORT={launch.port} ({_reason(error)}). Is rank 0 running there, and with the same port?"
                ) from None
            time.sleep(_PAUSE)


def _connect(launch: Launch) -> None:
    socket.create_connection((launch.address, launch.port), timeout=5).close()


def _reason(error: OSError) -> str:
    return "the name is unknown" if isinstance(error, socket.gaierror) else str(error.strerror or error)
