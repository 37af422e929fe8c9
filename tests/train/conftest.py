"""PyTorch's FP32 switches hold for the whole process: a test that sets them puts them back, or another room's fail."""

from collections.abc import Iterator

import pytest

from tests.conftest import fp32_switches


@pytest.fixture(autouse=True)
def no_switch_is_left() -> Iterator[None]:
    before = fp32_switches()
    yield
    assert fp32_switches() == before, "the test needs the fixture `switches_kept`"
