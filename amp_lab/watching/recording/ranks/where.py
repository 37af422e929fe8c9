"""Where a thread is: the line of the user's code that runs, and whether it waits there for other ranks."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import torch.distributed as dist

from amp_lab.autocast.messages.users_code import is_users, source
from amp_lab.watching.recording.ranks.groups import COLLECTIVES
from amp_lab.watching.words import place_in_words

_DISTRIBUTED: Final = str(Path(dist.__file__).parent)
_is_users = functools.cache(is_users)


class Place(NamedTuple):
    """Where a thread is.

    Attributes:
        moved: another object once the thread has moved.
        where: the line of the user's code, in words: "train.py:31: loss.backward()"; "" for none.
        talking: the collective that it is in, "dist.barrier()"; "" for none.
    """

    moved: object
    where: str
    talking: str


def line_of_this_thread() -> str:
    """Return the line of the user's code that runs, in words."""
    return _in_words(sys._getframe(1))


def place_of(thread: int) -> Place:
    """Return where another thread is."""
    frame = sys._current_frames().get(thread)
    if frame is None or thread == threading.get_ident():
        return Place(None, "", "")
    name = frame.f_code.co_name
    talks = name in COLLECTIVES and frame.f_code.co_filename.startswith(_DISTRIBUTED)
    return Place((id(frame), frame.f_lasti), _in_words(frame), f"dist.{name}()" if talks else "")


def _in_words(frame: FrameType | None) -> str:
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=4096)
def _line(file: str, line: int) -> str:
    return place_in_words(source(file, line))
