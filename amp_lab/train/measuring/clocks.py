"""How long one call takes: by the CPU's clock, or by the GPU's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Clock = Callable[[Callable[[], object]], float]


def clock_for(device: str | torch.device | None) -> Clock:
    """Return what times a call, in seconds.

    A GPU works on after the call that gave it work has returned. So both clocks wait for it, before and after: what
    came before is not counted, and what was begun is.

    Args:
        device: "cuda": CUDA events, which the GPU stamps itself. Any other: the CPU's clock. None: the CPU's clock,
            which waits for the accelerator, too, if this process has used one.

    Raises:
        ValueError: for CUDA where there is none, and for what is no device.
    """
    if device is None:
        return _by_wall_clock
    at = device_named(device)
    if at.type == "cuda" and not torch.cuda.is_available():
        raise ValueError('device="cuda": PyTorch finds no CUDA device here; leave device out')
    return partial(_by_cuda_events, at) if at.type == "cuda" else _by_wall_clock


def device_named(device: Any) -> torch.device:
    """Return a device of PyTorch by its name.

    Raises:
        ValueError: if there is no such name.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device={device!r} is no device of PyTorch, such as "cuda" or "cpu"') from error


def _by_wall_clock(way: Callable[[], object]) -> float:
    _wait()
    start = time.perf_counter()
    way()
    _wait()
    return time.perf_counter() - start


def _by_cuda_events(device: torch.device, way: Callable[[], object]) -> float:
    events: Any = torch.cuda.Event
    start, end = events(enable_timing=True), events(enable_timing=True)
    stream = torch.cuda.current_stream(device)  # an event belongs to one device, not always the current one
    torch.cuda.synchronize(device)
    start.record(stream)
    way()
    end.record(stream)
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1e3  # it says milliseconds


def _wait() -> None:
    """Wait until the accelerator has done what it was told; where nobody has used one, there is nothing to wait for."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, for a while."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
