"""Run something apart: untouched by the caller's modes, and without a word.

What is run is meant to fail in many ways, and nobody should hear of it.
"""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

_Result = TypeVar("_Result")


def apart(work: Callable[[], _Result]) -> _Result:
    """Do some work in a thread of its own, in silence, and return its result.

    Autocast's state, the gradient mode, inference mode and the modes that catch operators belong to a thread. So
    those of the caller do not reach the work, and what the work sets is gone with its thread. Warnings, though,
    belong to the process: no thread gives any meanwhile.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_silently, work).result()


def _silently(work: Callable[[], _Result]) -> _Result:
    with _quiet():
        return _from_binding(work)


@contextmanager
def _quiet() -> Iterator[None]:
    """No log and no warning about calls that are meant to fail, and none used up that is given once only."""

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != me

    me = threading.get_ident()
    log, always = logging.getLogger("torch._subclasses.fake_tensor"), torch.is_warn_always_enabled()
    log.addFilter(from_elsewhere)
    torch.set_warn_always(True)  # else a warning that is swallowed here would not be given later on
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_warn_always(always)
        log.removeFilter(from_elsewhere)


def _from_binding(work: Callable[[], _Result]) -> _Result:
    """Do some work while one of torch's functions runs.

    A warning of PyTorch's C++ code goes to Python's `warnings`, which can be silenced, if a function such as
    `torch.abs` was called; from an operator called by itself it goes straight to the terminal.
    """
    done: list[_Result] = []

    class Instead(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            done.append(work())
            return args[0]

    nothing = torch.empty(0)
    with Instead():
        torch.abs(nothing)
    return done[0]
