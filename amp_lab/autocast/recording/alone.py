"""One recording at a time: kernels of PyTorch are replaced in the whole process meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_lock = threading.RLock()
_running: list[str] = []  # the model that is being followed


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Wait for another thread's recording to end.

    Raises:
        RuntimeError: if this thread is in one: the model itself asks for one.
    """
    with _lock:
        if _running:
            raise RuntimeError(
                f"{_running[0]} is being followed operator by operator (xray, find_overflow), and asks for that "
                "itself: take that call out of it, or give that part alone"
            )
        _running.append(name)
        try:
            yield
        finally:
            _running.clear()
