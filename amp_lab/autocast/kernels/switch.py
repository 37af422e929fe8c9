"""A switch of the whole process that several people may hold on at once: by blocks, decorators, start and stop.

An emulation changes PyTorch's table of kernels, and the process has one such table. So who asks is counted: the table
is changed when the first one asks and restored when the last one ends, in whichever order they end.
"""

import functools
import inspect
import reprlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Hashable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import torch

from amp_lab.autocast.kernels.uncompiled import uncompiled

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Their calls return at once; a block around one would be over before its work begins.
_PIECEMEAL = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_LATER = (Generator, AsyncGenerator, Coroutine)
_INSIDE = "use a with-block inside it, around the work"


class Restorable(Protocol):
    """A change that can be undone."""

    def restore(self) -> None:
        """Undo it."""


class Emulation(ContextDecorator, ABC):
    """One who may ask for an emulation: a block, a decorator, and a switch to start and stop. `print` explains it.

    Starting what is started, or stopping what is not, does nothing.
    """

    switch: ClassVar["Switch"]
    # How it is written in code, "tensor_cores()". Those written alike share `start` and `stop`.
    call: str

    @property
    @abstractmethod
    def demands(self) -> frozenset[Hashable]:
        """What it asks for; nothing is replaced while nobody asks for anything."""

    @abstractmethod
    def __repr__(self) -> str:
        """Say what holds now, whoever asked for it."""

    @property
    def on(self) -> bool:
        """Whether it is started, by this object or one that is written alike, or a block of this object runs."""
        return self.switch.holds(self)

    def start(self) -> Self:
        """Begin, until `stop` of this object or of any that is written alike; return this object."""
        self.switch.start(self)
        return self

    def stop(self) -> None:
        """End what `start` began. Blocks last until their own end, and so does what they emulate."""
        self.switch.stop(self)

    def __enter__(self) -> Self:
        self.switch.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.switch.leave(self)

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function: each of its calls is a block."""
        if advice := _no_plain_function(function):
            raise TypeError(f"{self._name} decorates plain functions, not {reprlib.repr(function)}: {advice}")
        return super().__call__(self._whole(function))

    def _whole(self, function: _Function) -> _Function:
        """The function, and an error where a call of it leaves its work for later."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            if isinstance(result, _LATER):
                if isinstance(result, Coroutine):
                    result.close()  # or Python warns that nobody awaited it
                raise TypeError(
                    f"{self._name} decorates a function that returns {reprlib.repr(result)}, whose work begins when "
                    f"the block is over: {_INSIDE}"
                )
            return result

        return cast(_Function, call)

    @property
    def _name(self) -> str:
        return f"{self.call.partition('(')[0]}()"


def _no_plain_function(function: Any) -> str:
    """What to do instead, if this is none; else nothing."""
    if isinstance(function, type):
        return "decorate its methods"
    if isinstance(function, torch.nn.Module):
        return "decorate its forward, or put a with-block around its call"
    if isinstance(function, staticmethod | classmethod | property):
        return "write it below that decorator, next to the function"
    if not callable(function):
        return "write it above a function's def, or give it a function"
    if any(piecemeal(each) for piecemeal in _PIECEMEAL for each in (function, type(function).__call__)):
        return _INSIDE
    return ""


class Switch:
    """Who asks for an emulation, and what was replaced for it while anybody does.

    `in_force` is all that they demand together. Replaced kernels may read it at every call: as long as it does not
    get empty, the table of kernels is left alone.
    """

    def __init__(self, replace: Callable[["Switch"], Restorable]):
        self.in_force: frozenset[Hashable] = frozenset()
        self._replace = replace
        self._started: dict[str, Emulation] = {}  # by how they are written
        self._blocks: list[Emulation] = []  # one entry for each block that runs now
        self._replaced: Restorable | None = None
        self._lock = threading.RLock()

    def holds(self, one: Emulation) -> bool:
        """Whether this one is started, or a block of its runs."""
        return one.call in self._started or one in self._blocks

    def holder(self) -> str:
        """Who keeps it on, in words."""
        for one in self._started.values():
            if one.demands:
                return f"{one.call}, which was started,"
        return "a with-block"

    @uncompiled
    def start(self, one: Emulation) -> None:
        """Note that it is started; an error means that it is not."""
        with self._lock:
            self._settle(self._started | {one.call: one}, self._blocks)

    @uncompiled
    def stop(self, one: Emulation) -> None:
        """Forget that it, or one written alike, was started."""
        with self._lock:
            others = {call: other for call, other in self._started.items() if call != one.call}
            self._settle(others, self._blocks)

    @uncompiled
    def enter(self, one: Emulation) -> None:
        """Note that a block of it begins."""
        with self._lock:
            self._settle(self._started, [*self._blocks, one])

    @uncompiled
    def leave(self, one: Emulation) -> None:
        """Note that a block of it ends.

        Raises:
            RuntimeError: if none runs.
        """
        with self._lock:
            if one not in self._blocks:
                raise RuntimeError(
                    f"no block of this {one.call} runs that could end: let a with-statement begin and end it, or use "
                    "start() and stop()"
                )
            others = self._blocks.copy()
            others.remove(one)
            self._settle(self._started, others)

    def _settle(self, started: dict[str, Emulation], blocks: list[Emulation]) -> None:
        demanded = frozenset[Hashable]().union(*(one.demands for one in [*started.values(), *blocks]))
        if demanded and self._replaced is None:
            self._replaced = self._replace(self)
        elif not demanded and self._replaced is not None:
            self._replaced.restore()
            self._replaced = None
        # Last, so that nothing is noted that could not be done.
        self._started, self._blocks, self.in_force = started, blocks, demanded
