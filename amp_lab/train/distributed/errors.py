"""What is said when processes cannot train together, by whom, and with which exit code."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from typing import Final

from amp_lab.train.distributed.failures import RankFailed, RanksDiffer

_QUIET: Final = "said_by_another_rank"


class LaunchError(RuntimeError):
    """The processes were not started as they must be; the message says how to start them."""


def quiet(error: BaseException) -> None:
    """Mark an error that another rank tells in the same words."""
    with contextlib.suppress(AttributeError):
        setattr(error, _QUIET, True)


def is_quiet(error: BaseException) -> bool:
    """Tell whether another rank tells it."""
    return bool(getattr(error, _QUIET, False))


def exit_code(program: Callable[[], int | None], explained: tuple[type[Exception], ...] = ()) -> int:
    """Run a program to its end, and print what broke it off: one message, and a traceback only where nobody knows why.

    Args:
        program: returns an exit code, or None.
        explained: errors whose message says what to do; where they were raised does not matter.

    Returns:
        what the program returns, None as 0; 2 for a wrong launch, 1 for other errors, 130 for Ctrl+C.
    """
    try:
        return program() or 0
    except LaunchError as error:
        _say(error, str(error))
        return 2
    except KeyboardInterrupt as error:
        _say(error, "\n".join(["broken off.", *getattr(error, "__notes__", [])]))
        return 130
    except Exception as error:
        known = isinstance(error, (RankFailed, RanksDiffer, *explained))
        _say(error, str(error) if known else "".join(traceback.format_exception(error)).rstrip())
        return 1


def _say(error: BaseException, text: str) -> None:
    if not is_quiet(error):
        print(text, file=sys.stderr, flush=True)
