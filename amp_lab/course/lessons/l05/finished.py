"""Answers that let finished code do what they were to write: noticed while they run, wherever they keep it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.expect import Mistake
from amp_lab.scaling.dynamic import DynamicLossScaler
from amp_lab.scaling.static import StaticLossScaler

SCALERS: tuple[type, ...] = (torch.amp.GradScaler, DynamicLossScaler, StaticLossScaler)


class Watch(contextlib.AbstractContextManager[None]):
    """Raises `Mistake` if one of `finished` ran inside: a function, or any method of a class, its `__init__` included.

    It is meant for `ask.around`, and goes by the calls that Python makes. So it does not matter whether the answer
    inherits from a finished scaler or keeps one in an attribute, a list or a closure, or only its methods.
    """

    def __init__(self, ask: Ask, *finished: Callable[..., Any]) -> None:
        self._ask = ask
        self._names = {code: name for each in finished for code, name in _codes(each)}
        self._seen = ""
        self._before: Any = None

    def __enter__(self) -> None:
        self._seen, self._before = "", sys.getprofile()
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self._seen:
            raise Mistake("finished-inside", call=self._ask.call, got=f"`{self._seen}`") from None

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in self._names:
            self._seen = self._seen or self._names[frame.f_code]


def _codes(finished: Callable[..., Any]) -> Iterator[tuple[CodeType, str]]:
    """Yield the code and the full name of a function, or of all that a class and its bases define."""
    kinds = finished.__mro__[:-1] if isinstance(finished, type) else ()
    functions = [each for kind in kinds for each in vars(kind).values()] if kinds else [finished]
    for each in functions:
        if isinstance(each, FunctionType):
            yield each.__code__, f"{each.__module__}.{each.__qualname__}"
