"""What is wrong with a log, in words for its owner."""

from __future__ import annotations


class LogError(ValueError):
    """A log that cannot be read, or a column that cannot be told; the message says what to do."""
