"""PyTorch's FP32 switches hold for the whole process: a test that sets them puts them back, or another room's fail."""

from collections.abc import Iterator

import pytest
import torch

BACKENDS = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,
    torch.backends.cudnn.rnn,
    torch.backends.mkldnn.matmul,
)


def settings() -> list[str]:
    return [each.fp32_precision for each in BACKENDS]


@pytest.fixture(autouse=True)
def no_switch_is_left() -> Iterator[None]:
    before = settings()
    yield
    assert settings() == before, "the test needs the fixture `switches_kept`"


@pytest.fixture
def switches_kept() -> Iterator[None]:
    """Put the switches back, those of the older API first: it writes the others, too, and never writes "none"."""
    before = settings()
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for each, value in zip(BACKENDS, before, strict=True):
        each.fp32_precision = value
