"""What is said when processes cannot train together, by whom, and with which exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Final

import torch

from amp_lab.train.distributed.failures import RankFailed, RanksDiffer

_QUIET: Final = "said_by_another_rank"
WITHOUT_DISTRIBUTED: Final = (
    f"this PyTorch ({torch.__version__}) was built without torch.distributed, by which processes talk to each other: "
    "install one from pytorch.org that has it. One process can train without: Trainer(model, ...), with no "
    "DistributedDataParallel around the model"
)


class LaunchError(RuntimeError):
    """The processes were not started as they must be; the message says how to start them."""


def quiet(error: BaseException) -> None:
    """Mark an error that another rank tells in the same words."""
    with contextlib.suppress(AttributeError):
        setattr(error, _QUIET, True)


def is_quiet(error: BaseException) -> bool:
    """Tell whether another rank tells it."""
    return bool(getattr(error, _QUIET, False))


def speaks_for_its_machine(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell the one process of a machine that says what all of them there can see."""
    return environment.get("LOCAL_RANK", "0") == "0"


def of_this_machine(message: str) -> LaunchError:
    """Return an error that all processes of a machine have, and one tells."""
    error = LaunchError(message)
    if not speaks_for_its_machine():
        quiet(error)
    return error


def need_distributed() -> None:
    """Make sure that this PyTorch has `torch.distributed`, without which nothing of several processes can be imported.

    Raises:
        LaunchError: if it was built without.
    """
    if not torch.distributed.is_available():
        raise of_this_machine(WITHOUT_DISTRIBUTED)


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
        notes = getattr(error, "__notes__", ["No training was under way, so nothing was saved."])
        _say(error, "\n".join(["broken off by Ctrl+C.", *notes]))
        return 130
    except Exception as error:
        known = isinstance(error, (RankFailed, RanksDiffer, *explained))
        _say(error, str(error) if known else "".join(traceback.format_exception(error)).rstrip())
        return 1


def _say(error: BaseException, text: str) -> None:
    if not is_quiet(error):
        print(text, file=sys.stderr, flush=True)
