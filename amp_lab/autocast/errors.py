"""Explain an error that mixed precision raised: what happened, in which line, and what to do."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

from amp_lab.autocast.messages.explaining import best
from amp_lab.autocast.messages.explanation import AMP_LAB, UNKNOWN, Explanation
from amp_lab.autocast.messages.pasted import Raised, cleaned, read
from amp_lab.autocast.messages.raised import chain, message_of
from amp_lab.autocast.messages.users_code import source

__all__ = ["AMP_LAB", "UNKNOWN", "Explanation", "explain"]


def explain(error: BaseException | warnings.WarningMessage | str | None = None) -> Explanation:
    """Explain an error, or a warning, of code that uses mixed precision.

        >>> try:
        ...     model(x)
        ... except RuntimeError as error:
        ...     print(explain(error))

    An error that is not known is said to be so; nothing is guessed. What is known are errors of mismatched
    dtypes and devices, of FP16's range, of the order of GradScaler's calls, and of autocast's arguments. Of several
    errors that hang together, one raised from another or while handling it, the first that is known is explained.

    Args:
        error: the exception; or a warning, as an exception or as `warnings.catch_warnings(record=True)` keeps it;
            or the text of a message, or of a whole traceback, copied from a terminal, a notebook, a log, an
            issue. None: the last error that reached the top, as in the notebook's cell before.

    Raises:
        TypeError: if it is something else.
        ValueError: if it is None, and there was no error; or an empty text.
    """
    if error is None:
        error = _last()
    if isinstance(error, str):
        return _of_text(error)
    if isinstance(error, warnings.WarningMessage):
        message = error.message if isinstance(error.message, str) else message_of(error.message)
        return best([Raised(message, (source(error.filename, error.lineno),))])
    if isinstance(error, BaseException):
        return best(chain(error))
    raise TypeError(
        f"explain({type(error).__name__}): give it the exception, as in `except RuntimeError as error: "
        "explain(error)`, or the text of its message"
    )


def _of_text(text: str) -> Explanation:
    if not text.strip():
        raise ValueError("explain(''): the text is empty. Give it the exception, or the text of its message")
    told = read(text)
    explanation = best(told)
    if explanation.known or len(told) == 1 == len(text.splitlines()):
        return explanation
    # Something known may stand where no message was looked for: in the middle of a log.
    anywhere = best([told[0]._replace(message=cleaned(text))])
    return replace(anywhere, message=told[0].message) if anywhere.known else explanation


def _last() -> BaseException:
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(last, BaseException):
        return last
    raise ValueError("explain(): there was no error yet. Give it the exception, or the text of its message")
