"""Keep autocast off for a while, whatever regions the code in between enters: what it computes is FP32's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """For a while, let every `torch.autocast` region that this thread enters be one with `enabled=False`.

    Regions that this thread is already in are not left. (A backward pass on a GPU runs in a thread of PyTorch's own:
    what a checkpoint computes again there counts as this thread's.)
    """
    mine, original = threading.get_ident(), cast(Callable[[Any], Any], torch.autocast.__enter__)

    def enter(region: Any) -> Any:
        if threading.get_ident() != mine and not _is_engine():
            return original(region)
        enabled, region._enabled = region._enabled, False
        try:
            return original(region)
        finally:
            region._enabled = enabled

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = original  # type: ignore[method-assign]


def _is_engine() -> bool:
    """Return whether this is a thread of autograd's engine: one that Python did not begin, in a backward pass."""
    in_backward = torch._C._current_autograd_node() is not None
    return in_backward and isinstance(threading.current_thread(), threading._DummyThread)
