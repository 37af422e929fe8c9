"""What holds for the whole run, so that it is fast."""

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what collecting made out of every later search for garbage.

    Thousands of tests and the modules behind them stay until the end. Looking at all of it takes about a second, and
    many tests call `gc.collect()`.
    """
    gc.collect()
    gc.freeze()
