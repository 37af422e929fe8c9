"""What makes the whole run fast: nothing here changes what a test shows."""

import gc
import os

import pytest
import torch


def pytest_configure() -> None:
    """With a worker per core, the threads of one would only take the core from the other."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what collecting made out of every later search for garbage.

    Thousands of tests and the modules behind them stay until the end. To look at all of it takes half a second, and
    many tests call `gc.collect()`, some more than once.
    """
    gc.collect()
    gc.freeze()
