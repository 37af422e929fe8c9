"""Putting back what a function disturbed: random numbers, PyTorch's modes, settings of Python."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
_REDUCED_PRECISION = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
_backends: Any = (
    torch.backends
)  # some of its parts are made when PyTorch is imported, unseen by a type checker
_FP32_SWITCHES = (
    _backends.cuda.matmul,
    _backends.cudnn.conv,
    _backends.cudnn.rnn,
    _backends.mkldnn.matmul,
)
_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE")
    if hasattr(signal, name)
)


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Put back, at the end of the `with` block, what stood at its beginning.

    Random numbers: Python, NumPy's legacy generator, PyTorch on the CPU and on CUDA devices in use.
    PyTorch: gradient, inference and anomaly mode, default dtype and device, autocast, deterministic
    algorithms, number of threads. Python: working directory, recursion limit, warning filters, NumPy's error
    handling, signal handlers.
    """
    generators = [(write, read()) for read, write in _generators()]
    settings = [(read, write, read()) for read, write in _SETTINGS]
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    grad = torch.is_grad_enabled()
    # A region of the mode that is on already changes nothing; its exit resets what was left entered inside.
    with warnings.catch_warnings(), torch.inference_mode(torch.is_inference_mode_enabled()):
        torch.set_grad_enabled(grad)
        try:
            yield
        finally:
            for read, write, before in settings:
                if read() != before:
                    write(before)
            for number, handler in zip(_SIGNALS, handlers, strict=True):
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
            for write, state in generators:
                write(state)


def _generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    yield random.getstate, random.setstate
    yield torch.get_rng_state, torch.set_rng_state
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all
    # NumPy imports this part when it is first used; until then there is no state worth 0.4 ms of copying.
    if "numpy.random" in sys.modules:
        yield np.random.get_state, np.random.set_state


def default_device() -> torch.device | None:
    """Return where tensors are made that are not told where; None for a device that this machine lacks."""
    try:
        return torch.get_default_device()
    except (AssertionError, RuntimeError):
        return None
    except AttributeError:  # PyTorch 2.9 does not get over `set_default_device(None)`
        return torch.device("cpu")


def _set_default_device(device: torch.device | None) -> None:
    # The CPU is what PyTorch takes without a default, which spares every later call a look at it.
    torch.set_default_device(None if device is None or device.type == "cpu" else device)


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES]


def _set_autocast(states: list[tuple[bool, torch.dtype]]) -> None:
    for kind, (enabled, dtype) in zip(_AUTOCAST_DEVICES, states, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _autocast_depth() -> int:
    # PyTorch tells how many autocast regions are open only in answer to opening or closing one.
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _close_autocast(depth: int) -> None:
    """Leave regions that were not left: while one counts as open, weights cast in it are never dropped."""
    while _autocast_depth() > depth:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _set_folder(path: str | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            os.chdir(path)


def _flushes_denormals() -> bool:
    # PyTorch sets this and does not tell it: a subnormal number of FP32 shows what holds.
    return not torch.full((1,), 1e-40, dtype=torch.float32, device="cpu").mul_(1.0).any()


def _fp32_precision() -> tuple[str | None, ...]:
    """PyTorch's two ways to let FP32 products be computed in less: one switch for all, and one for each library."""
    try:
        for_all = torch.get_float32_matmul_precision()
    except RuntimeError:  # the switches of the libraries differ, so that one word cannot tell
        for_all = None
    return for_all, *(owner.fp32_precision for owner in _FP32_SWITCHES)


def _set_fp32_precision(state: tuple[str | None, ...]) -> None:
    for_all, *each = state
    if for_all is not None:
        torch.set_float32_matmul_precision(for_all)
    for owner, precision in zip(_FP32_SWITCHES, each, strict=True):
        owner.fp32_precision = precision


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


# How to read a setting, and how to write it back; written only if it has changed.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (default_device, _set_default_device),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_autocast, _set_autocast),
    (_autocast_depth, _close_autocast),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1]),
    ),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.set_anomaly_enabled(*state),
    ),
    (torch.get_num_threads, torch.set_num_threads),
    (_fp32_precision, _set_fp32_precision),
    (_flushes_denormals, torch.set_flush_denormal),
    *(_attribute(torch.backends.cuda.matmul, name) for name in _REDUCED_PRECISION),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (np.geterr, lambda state: np.seterr(**state)),
    (_folder, _set_folder),
)
