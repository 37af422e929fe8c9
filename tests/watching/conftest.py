"""What every test of this room stands under."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def rules_that_fail_are_loud(monkeypatch):
    """A rule that raises is listed in a report; here it fails the test."""
    monkeypatch.setenv("AMP_LAB_STRICT_RULES", "1")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, and so the same numbers each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
