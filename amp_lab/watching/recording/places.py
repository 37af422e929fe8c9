"""Which line of the user's code makes a call, and what that code calls the objects in it."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final

from amp_lab.autocast.messages.users_code import is_users
from amp_lab.autocast.records import Source
from amp_lab.watching.recording.local_variables import locals_of

Names = tuple[tuple[str, str], ...]
Place = tuple[Source, Names]
# What an object is and its number, by its id: {140…: ("optimizer", 1)}.
Known = Mapping[int, tuple[str, int]]

# A program that makes its code while it runs must not fill the memory.
_MOST: Final = 4096


class Places:
    """Finds lines and names by walking the stack; both are found once for a line.

    Code is known by its `id`, and kept, so that no other gets it: its hash would be computed anew each time, from all
    of its constants and names.
    """

    def __init__(self) -> None:
        self._code: dict[int, tuple[CodeType, bool]] = {}  # with whether it is the user's
        self._places: dict[tuple[int, int, tuple[str, int]], Place] = {}

    def frame(self, above: int = 1) -> FrameType | None:
        """Return the innermost frame of the user's code.

        Args:
            above: how many frames are the watch's own for certain. Python makes an object of each frame that is
                looked at, which costs more than all else here.
        """
        try:
            frame: FrameType | None = sys._getframe(above)
        except ValueError:  # there are not so many
            frame = sys._getframe(1)
        known = self._code
        while frame is not None:
            code = frame.f_code
            found = known.get(id(code)) or self._learn(code)
            if found[1]:
                return frame
            frame = frame.f_back
        return None

    def is_users_call(self) -> bool:
        """Return whether the call that is noted was made by the user's code itself, not by PyTorch for it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith("amp_lab.watching."):
            frame = frame.f_back
        return frame is self.frame()

    def _learn(self, code: CodeType) -> tuple[CodeType, bool]:
        if len(self._code) >= _MOST:
            self._code.clear()
            self._places.clear()
        self._code[id(code)] = found = code, is_users(code.co_filename)
        return found

    def source(self, frame: FrameType) -> Source:
        """Return the line that a frame is in."""
        return _source(frame)

    def of(self, above: int, known: Known, subject: tuple[str, int]) -> Place | tuple[None, Names]:
        """Return the line of the user's code that runs, and the names of the watched objects there; None and no names
        if there is none on the stack.

        Args:
            above: as for `frame`, counted from the caller.
            known: the watched objects.
            subject: the one that it is about: where its frame knows several of a kind, this one's name goes first.
        """
        frame = self.frame(above + 1)
        if frame is None:
            return None, ()
        # Which line an instruction belongs to, Python would have to look up.
        key = id(frame.f_code), frame.f_lasti, subject
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = _source(frame), _names(frame, known, subject)
        return found

    def forget_names(self) -> None:
        """Look for names anew: there are more objects than before."""
        self._places.clear()


def _source(frame: FrameType) -> Source:
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals).strip()
    return Source(file, line, frame.f_code.co_name, text)


def _names(frame: FrameType, known: Known, subject: tuple[str, int]) -> Names:
    by_object: dict[tuple[str, int], str] = {}
    for name, value in _within_reach(frame):
        if (what := known.get(id(value))) is not None:
            by_object.setdefault(what, name)
    found: dict[str, str] = {}
    if subject in by_object:
        found[subject[0]] = by_object[subject]
    several = {kind for kind, number in known.values() if number}
    for (kind, number), name in by_object.items():
        found.setdefault(kind, name)
        if kind in several:
            found[f"{kind} {number}"] = name
    return tuple(found.items())


def _within_reach(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield the variables that code can name: its own, attributes of its `self`, elements of its lists, globals."""
    local, glob = locals_of(frame), frame.f_globals
    yield from _quietly(lambda: list(local.items()))
    owner = local.get("self")
    if owner is not None:
        attributes = _quietly(lambda: list(object.__getattribute__(owner, "__dict__").items()))
        yield from ((f"self.{name}", value) for name, value in attributes)
        modules = _quietly(lambda: list(object.__getattribute__(owner, "_modules").items()))
        yield from ((f"self.{name}", value) for name, value in modules)
    for name, value in _quietly(lambda: list(local.items())):
        if type(value) in (list, tuple) and len(value) <= 16:
            yield from ((f"{name}[{index}]", element) for index, element in enumerate(value))
        elif type(value) is dict and len(value) <= 16 and value is not glob:
            yield from ((f"{name}[{key!r}]", element) for key, element in list(value.items()))
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED or frame.f_locals is not glob:
        yield from _quietly(lambda: list(glob.items()))


def _quietly(items: Callable[[], list[tuple[str, Any]]]) -> list[tuple[str, Any]]:
    try:
        return items()
    except Exception:  # an object that is strange is without a name, and no more than that
        return []
