"""What holds for all tests: the run is fast, and PyTorch's FP32 switches, which are the process's, can be put back."""

import gc
import os
from collections.abc import Iterator

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


BACKENDS = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,
    torch.backends.cudnn.rnn,
    torch.backends.mkldnn.matmul,
)


def fp32_switches() -> list[str]:
    """Return the switches of the newer API, and the one word of the older, which is an error where they differ."""
    try:
        word = torch.get_float32_matmul_precision()
    except RuntimeError:
        word = "none tells"
    return [*(each.fp32_precision for each in BACKENDS), word]


@pytest.fixture
def switches_kept() -> Iterator[None]:
    """Put the switches back, those of the older API first: it writes the others, too, and never writes "none"."""
    before = [each.fp32_precision for each in BACKENDS]
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for each, value in zip(BACKENDS, before, strict=True):
        each.fp32_precision = value
