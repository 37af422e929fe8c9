"""What every test of this room stands under."""

import pytest


@pytest.fixture(autouse=True)
def rules_that_fail_are_loud(monkeypatch):
    """A rule that raises is listed in a report; here it fails the test."""
    monkeypatch.setenv("AMP_LAB_STRICT_RULES", "1")
