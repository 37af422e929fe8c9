"""Asking in a way that survives a question that fails."""

import warnings
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def asked(what: str, question: Callable[[], Answer]) -> Answer | None:
    """The answer, or None where the question raises; a warning then says that `what` is unknown.

    Any error counts: a function that another PyTorch does not have, or a driver that fails, costs one line
    of the report and not the report. `describe_device` turns the warning into a note.
    """
    try:
        return question()
    except Exception as error:
        # The first line: PyTorch's dispatcher adds a list of all its backends.
        said = [type(error).__name__, *str(error).splitlines()[:1]]
        warnings.warn(f"Unknown: {what} ({': '.join(said)}).", stacklevel=2)
        return None
