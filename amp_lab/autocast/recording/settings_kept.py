"""Give PyTorch's settings and the random number generators back as they were, whatever a model does to them."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
from collections.abc import Iterable, Iterator

import torch

_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Keep this thread's gradient mode and autocast regions, the default dtype and anomaly detection."""
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    anomalies, checks_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    regions = [(each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in _DEVICES]
    cache, depth = torch.is_autocast_cache_enabled(), _depth()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)
        torch.set_anomaly_enabled(anomalies, checks_nan)
        for device, enabled, region_dtype in regions:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, region_dtype)
        torch.set_autocast_cache_enabled(cache)
        for _ in range(_depth() - depth):  # regions that were entered and never left
            torch.autocast_decrement_nesting()
        if depth == 0:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def fake_errors_unlogged() -> Iterator[None]:
    """Keep PyTorch from logging an error, with a traceback, where an operator on FakeTensors raises one."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _depth() -> int:
    """Return how many regions this thread is in."""
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


@contextlib.contextmanager
def random_states_kept(devices: Iterable[int], generators: Iterable[torch.Generator]) -> Iterator[None]:
    """Keep the random number generators of PyTorch, Python and NumPy, and those given."""
    own = [(generator, generator.get_state()) for generator in generators]
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(state)
        for generator, before in own:
            generator.set_state(before)
