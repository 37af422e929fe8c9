"""The roll call before a group opens: who has come, and whether all have brought the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch

from amp_lab.train.distributed.errors import LaunchError, quiet
from amp_lab.train.distributed.failures import first_line
from amp_lab.train.distributed.stores import Store

_POLL: Final = 0.02  # seconds from one look to the next
_LINGER: Final = 2.0  # seconds that rank 0 stays, so that the others can read what it has said


def called(store: Store, rank: int, size: int, timeout: float) -> str:
    """Wait until all ranks are there; return a prefix of keys in the store that belongs to this group alone.

    torchrun's store outlives a restart, with all that dead processes have left in it. So each process comes with a
    number of its own, and rank 0 opens a new part for those that answer now.

    Raises:
        LaunchError: on all that are there, if some have not come in so many seconds; rank 0 tells which.
    """
    if rank:
        token = uuid.uuid4().hex
        store.set(f"here/{rank}", token)
        part = _answer(store, f"part/{token}", timeout, rank)
        store.set(f"{part}/{rank}", token)
        # Rank 0 has its say first: if somebody is missing, it knows who.
        _heed(store, f"{part}/come", rank, size, timeout + _LINGER)
        return part
    part, missing, end = f"part-{store.add('parts', 1)}", set(range(1, size)), time.monotonic() + timeout
    while missing and time.monotonic() < end:
        missing = {each for each in missing if not store.check([f"{part}/{each}"])}
        for each in missing:
            if store.check([f"here/{each}"]):
                store.set(f"part/{store.get(f'here/{each}').decode()}", part)
        time.sleep(_POLL if missing else 0)
    store.set(f"{part}/come", _absent(missing, size, timeout) if missing else "")
    _heed(store, f"{part}/come", rank, size - len(missing), timeout)
    return part


def check_alike(store: Store, rank: int, size: int, facts: Mapping[str, object], timeout: float) -> None:
    """Compare what ranks have, by what it is called; values are compared as JSON, those of a dict one by one.

    Once in a store: for each comparison, give a part of its own.

    Raises:
        LaunchError: on all ranks, in the same words, if one has something else than rank 0; rank 0 says them.
    """
    mine = {name: json.dumps(value, default=str, sort_keys=True) for name, value in _flat(facts)}
    _compare(store, rank, size, [_who(rank), mine], _difference, timeout)


def check_different(store: Store, rank: int, size: int, own: str, timeout: float) -> None:
    """Make sure that each rank has something of its own, such as a GPU; once in a store.

    Raises:
        LaunchError: on all ranks, in the same words, if two have the same; rank 0 says them.
    """
    _compare(store, rank, size, own, _shared, timeout)


def _compare(
    store: Store, rank: int, size: int, own: Any, judge: Callable[[list[Any]], str], timeout: float
) -> None:
    """Show rank 0 what each has, and heed what it says; "" if all is well."""
    store.set(f"has/{rank}", json.dumps(own))
    if rank == 0:
        keys = [f"has/{each}" for each in range(size)]
        with contextlib.suppress(RuntimeError):
            store.wait(keys, timedelta(seconds=timeout))
        missing = [each for each, key in enumerate(keys) if not store.check([key])]
        told = [] if missing else [json.loads(store.get(each)) for each in keys]
        store.set("said", _absent(missing, size, timeout) if missing else judge(told))
    _heed(store, "said", rank, size, timeout + _LINGER)


def versions() -> dict[str, str]:
    """Return what code this process runs."""
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "code (checksum)": _code(),
    }


def _code() -> str:
    """Return a checksum of what trains: the files of this package, and the script that runs."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    script = getattr(sys.modules["__main__"], "__file__", None)
    total = hashlib.sha256()
    for each in [*files, *([Path(script)] if script else [])]:
        with contextlib.suppress(OSError):
            total.update(each.read_bytes())
    return total.hexdigest()[:12]


def _flat(facts: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{each}", one) for each, one in value.items())
        else:
            yield name, value


def _heed(store: Store, key: str, rank: int, present: int, timeout: float) -> None:
    """Raise what rank 0 has written there, if anything; it waits a moment, so that the others can read it."""
    said = _answer(store, key, timeout, rank)
    if not said:
        return
    error = LaunchError(said)
    if rank:
        quiet(error)
        store.add(f"{key}/read", 1)
    else:
        end = time.monotonic() + _LINGER
        while store.add(f"{key}/read", 0) < present - 1 and time.monotonic() < end:
            time.sleep(_POLL)
    raise error


def _answer(store: Store, key: str, timeout: float, rank: int) -> str:
    try:
        store.wait([key], timedelta(seconds=timeout))
        return str(store.get(key).decode())
    except RuntimeError as error:  # no answer in time, or nobody who could answer
        raise LaunchError(
            f"rank {rank}: rank 0 has not come, or has ended: look into its output. ({first_line(error)})"
        ) from None


def _difference(told: list[Any]) -> str:
    (first, expected), *others = told
    lines = [
        f"{who} has {name} {facts.get(name)}, {first} has {value}"
        for who, facts in others
        for name, value in expected.items()
        if facts.get(name) != value
    ]
    more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
    same = "All ranks need the same code, options and data: start them from the same files."
    return f"{'; '.join(lines[:3])}{more}. {same}" if lines else ""


def _shared(told: list[str]) -> str:
    for rank, own in enumerate(told):
        if (first := told.index(own)) != rank:
            return (
                f"ranks {first} and {rank} both have {own}: each process needs one of its own. Start as many as there "
                "are (--nproc-per-node), and let the launcher set LOCAL_RANK, or CUDA_VISIBLE_DEVICES for each"
            )
    return ""


def _who(rank: int) -> str:
    return f"rank {rank} ({socket.gethostname()}, pid {os.getpid()})"


def _absent(missing: Iterable[int], size: int, timeout: float) -> str:
    numbers = sorted(missing)
    shown = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    ranks, have = ("rank", "has") if len(numbers) == 1 else ("ranks", "have")
    return (
        f"after {timeout:.0f} s, {ranks} {shown} of {size} {have} not come. Each machine must start its own processes, "
        "with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE: look into the output of those that are missing"
    )
