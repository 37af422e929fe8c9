"""Takes calls in: a function that notes a kind of call is put around the functions that make it.

A noting function runs before the call, with the recorder and the call's arguments. It returns what is to run after
it, `after(result, error)`; or None, if the call is none of the watch's.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

from amp_lab.watching.recording.collapsing import ScaleCollapsed
from amp_lab.watching.recording.known import MOST
from amp_lab.watching.recording.patches import Around, Patches
from amp_lab.watching.recording.threads import Here

# What runs after a call that is noted: it gets what the call has returned, and the exception that has ended it.
After = Callable[[Any, BaseException | None], None]
Noting = After | None

_OWN: Final = "amp_lab.watching."


def nothing_after(result: Any, error: BaseException | None) -> None:
    """For a call that is one of the watch's, of which there is nothing to note when it ends."""


class Calls:
    """What one watch has put around calls, and which of them it notes."""

    def __init__(self) -> None:
        self.listening = False
        self.here, self.notes = Here(), dict[str, None]()
        self._patches, self._undo = Patches(), list[Callable[[], None]]()

    def around(self, owner: Any, name: str, what: str, noting: Callable[..., Noting]) -> None:
        """Let a function note the calls of a function of a class or a module.

        Args:
            what: the kind of call. Of calls of one kind inside of another, in the same thread, the outermost is noted.
        """
        self.put_around(owner, name, self._noted_by(what, noting))

    def _noted_by(self, what: str, noting: Callable[..., Noting]) -> Around:
        here = self.here

        def around(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            inside = here.inside
            if not self.listening or what in inside:
                return call(*args, **kwargs)
            try:
                after = noting(self, *args, **kwargs)
            except Exception as error:
                self.failed(what, error)
                after = None
            if after is None:
                return call(*args, **kwargs)
            inside.add(what)
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                inside.discard(what)
                self.quietly(what, after, None, error)
                raise
            inside.discard(what)
            try:
                after(result, None)
            except ScaleCollapsed:  # which is meant for the loop
                raise
            except Exception as error:
                self.failed(what, error)
            return result

        return around

    def put_around(self, owner: Any, name: str, around: Around) -> None:
        """Let a function stand around the calls of another, which is not noted itself: `around(call, *args)`."""
        try:
            self._patches.put_around(owner, name, around)
        except (AttributeError, TypeError) as error:
            self.failed(f"{getattr(owner, '__name__', owner)}.{name}", error)

    def hide_from_warnings(self) -> None:
        """Let a warning of PyTorch's name the user's line, not the one of ours that has made the call for it."""
        self.put_around(warnings, "warn", _warn)

    def on_stop(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def take_off(self) -> None:
        """Put everything back as it was. Once interrupted, it may be called again."""
        while self._undo:
            self.quietly("stop", self._undo[-1])
            self._undo.pop()
        for name, error in self._patches.undo():
            self.note(f"{name}: could not be put back as it was ({type(error).__name__}: {str(error)[:200]})")

    def failed(self, what: str, error: BaseException) -> None:
        """An error of the watch's own: the loop goes on, and the run tells of it."""
        self.note(f"{what}: could not be watched in full ({type(error).__name__}: {str(error)[:200]})")

    def note(self, words: str) -> None:
        if len(self.notes) < MOST:
            self.notes[words] = None

    def quietly(self, what: str, call: Callable[..., object], *args: Any) -> Any:
        """Return what a call of the watch's own returns; None if it fails."""
        try:
            return call(*args)
        except Exception as error:
            self.failed(what, error)
            return None


def _warn(
    call: Callable[..., None],
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    **kwargs: Any,
) -> None:
    """Stand around `warnings.warn`: frames of the watch's do not count for `stacklevel`."""
    return call(message, category, _level(sys._getframe(), stacklevel), source, **kwargs)


def _level(frame: Any, wanted: int) -> int:
    """Return the level, from a frame of ours on, of the frame that is `wanted` levels above without ours."""
    level, wanted = 0, max(wanted, 1)
    while frame is not None and wanted:
        file = frame.f_code.co_filename
        if not ("importlib" in file and "_bootstrap" in file):  # Python does not count these either
            level += 1
            wanted -= not str(frame.f_globals.get("__name__")).startswith(_OWN)
        frame = frame.f_back
    return level + wanted
