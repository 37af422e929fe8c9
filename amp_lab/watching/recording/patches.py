"""Attributes of classes and modules that are replaced for a while, and put back exactly as they were.

All watches share one replacement of an attribute, so that they may end in any order: it is taken out when the last of
them has ended. If somebody else has replaced the attribute in the meantime, theirs stays; what is left of ours in
their chain does nothing but call on.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# What stands around a call: it is given the call, and its arguments, and returns what the call returns.
Around = Callable[..., Any]

_PATIENCE: Final = 2.0  # seconds: what is done under the lock takes microseconds
_lock = threading.RLock()
_REPLACED: Final[dict[tuple[int, str], _Replacement]] = {}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one thread at a time change what is replaced.

    Ctrl-C can come just before the lock would be given back, and nobody else could then watch, or stop, any more. So a
    lock that is not free after a while is left to whom it belongs, and a new one takes its place.
    """
    global _lock
    lock = _lock
    if not lock.acquire(timeout=_PATIENCE):
        lock = _lock = threading.RLock()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Replacement:
    """One attribute that is replaced. `call` goes through what all watches have put around it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.was_own = name in vars(owner)
        self.original = inspect.getattr_static(owner, name)
        self.function = getattr(self.original, "__func__", self.original)
        self.around: list[Around] = []
        self.call: Callable[..., Any] = self.function
        self.stand_in = self._made()

    def _made(self) -> Any:
        """Return what takes the attribute's place; a static or a class method if the original is one."""

        # It has the original's name, documentation, signature, and marks such as that of PyTorch on `step`.
        @functools.wraps(self.function)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # a constant for the compiler, which then leaves us out
                return self.function(*args, **kwargs)
            return self.call(*args, **kwargs)

        return type(self.original)(stand_in) if self.function is not self.original else stand_in

    def compose(self) -> None:
        """Put the watches around the function, the last outermost."""
        call = self.function
        for around in self.around:
            call = functools.partial(around, call)
        self.call = call

    @property
    def in_place(self) -> bool:
        return vars(self.owner).get(self.name) is self.stand_in

    def put(self) -> None:
        setattr(self.owner, self.name, self.stand_in)

    def take_out(self) -> None:
        """Restore the attribute, unless somebody has replaced ours."""
        if not self.in_place:
            return
        try:
            if self.was_own:
                setattr(self.owner, self.name, self.original)
            else:
                delattr(self.owner, self.name)
        except Exception:  # a metaclass that did not refuse before
            if not isinstance(self.owner, type):
                raise
            if self.was_own:
                type.__setattr__(self.owner, self.name, self.original)
            else:
                type.__delattr__(self.owner, self.name)


class Patches:
    """What one watch has put around calls."""

    def __init__(self) -> None:
        self._made: list[tuple[_Replacement, Around]] = []

    def put_around(self, owner: Any, name: str, around: Around) -> None:
        """Let `around(call, *args, **kwargs)` stand for a function of a module or a class.

        Raises:
            AttributeError, TypeError: if there is no such attribute, or it cannot be set.
        """
        with _alone():
            replaced = _REPLACED.get((id(owner), name))
            if replaced is None or not replaced.in_place:
                replaced = _Replacement(owner, name)
            # Ctrl-C may come between any two lines: what is put somewhere is in the list before.
            self._made.append((replaced, around))
            try:
                if not replaced.in_place:
                    replaced.put()
                    _REPLACED[id(owner), name] = replaced
            except Exception:
                self._made.pop()
                raise
            replaced.around.append(around)
            replaced.compose()

    def undo(self) -> list[tuple[str, Exception]]:
        """Take everything out again, the last first. Once interrupted, it may be called again.

        Returns:
            The names of the attributes that refuse to be restored, and why. What is left there does nothing.
        """
        refused = []
        with _alone():
            while self._made:
                replaced, around = self._made[-1]
                replaced.around = [each for each in replaced.around if each is not around]
                replaced.compose()
                try:
                    if not replaced.around:
                        replaced.take_out()
                        if _REPLACED.get((id(replaced.owner), replaced.name)) is replaced:
                            del _REPLACED[id(replaced.owner), replaced.name]
                except Exception as error:
                    refused.append((f"{getattr(replaced.owner, '__name__', '')}.{replaced.name}", error))
                self._made.pop()
        return refused


def defining(kind: type, name: str) -> list[type]:
    """Return the classes, of this one and those above it, in which a method stands that Python code can replace."""
    return [each for each in kind.__mro__ if each is not object and callable(_function(vars(each).get(name)))]


def _function(value: Any) -> Any:
    return getattr(value, "__func__", value)


def with_subclasses(kind: type) -> list[type]:
    """Return a class and all that are derived from it, each once."""
    found: dict[type, None] = {kind: None}
    below: list[type] = kind.__subclasses__()
    for each in below:
        found.update(dict.fromkeys(with_subclasses(each)))
    return list(found)
