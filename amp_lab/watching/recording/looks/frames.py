"""The variables of the user's frames, and questions to their code."""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

from amp_lab.autocast.messages.users_code import is_users
from amp_lab.watching.recording.local_variables import locals_of

_FRAMES: Final = 4  # the user's, from the inside out: the loop may stand around the function that steps
_NAMES: Final = 32  # of each frame
_CODES: Final = 512
_MOVES: Final = re.compile(r"(LOAD|STORE)_(?:FAST|NAME|GLOBAL|DEREF)")


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the user's innermost frames, from the inside out."""
    found = 0
    while frame is not None and found < _FRAMES:
        if _is_users(frame.f_code.co_filename):
            found += 1
            yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    return is_users(file)


def variables_of(frame: FrameType, names: tuple[str, ...]) -> dict[str, Any]:
    """Return some variables of a frame."""
    if not names:
        return {}
    variables = locals_of(frame)
    return {name: variables[name] for name in names if name in variables}


def _once(ask: Callable[[CodeType], tuple[str, ...]]) -> Callable[[CodeType], tuple[str, ...]]:
    """Remember answers by the identity of the code: to hash a code object is to hash all that is in it."""
    known: dict[int, tuple[CodeType, tuple[str, ...]]] = {}

    def answer(code: CodeType) -> tuple[str, ...]:
        found = known.get(id(code))
        if found is None or found[0] is not code:
            if len(known) >= _CODES:
                known.clear()
            found = known[id(code)] = code, ask(code)
        return found[1]

    return answer


@_once
def running_names(code: CodeType) -> tuple[str, ...]:
    """Return the variables to which a line of code adds: `total += x`, `total = total + x`, `mean = 0.9 * mean + y`."""
    found: dict[str, None] = {}
    read: dict[int, set[str]] = {}
    before: dis.Instruction | None = None
    for each in dis.get_instructions(code):
        line = each.positions.lineno if each.positions else None
        for move, name in _moves(each):
            if move == "LOAD" and line is not None:
                read.setdefault(line, set()).add(name)
            elif before is not None and before.argrepr in ("+", "+=") and name in read.get(line or 0, ()):
                found[name] = None
        before = each
    return tuple(found)[:_NAMES]


def _moves(each: dis.Instruction) -> Iterator[tuple[str, str]]:
    """Yield which variables an instruction reads and writes; since Python 3.13 one may do two such things."""
    names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
    moves = _MOVES.findall(each.opname)
    if moves and all(isinstance(name, str) for name in names):
        if len(moves) < len(names):
            moves = moves * len(names)
        yield from zip(moves, names, strict=False)


@_once
def loop_variables(code: CodeType) -> tuple[str, ...]:
    """Return the names that the for loops of a piece of code assign to."""
    found: dict[str, None] = {}
    in_target = False
    for each in dis.get_instructions(code):
        if each.opname == "FOR_ITER":
            in_target = True
        elif in_target and each.opname.startswith("STORE_"):
            found.update((name, None) for move, name in _moves(each) if move == "STORE")
            in_target = "LOAD" not in each.opname
        elif in_target and not each.opname.startswith(("UNPACK", "EXTENDED_ARG", "CACHE", "NOP")):
            in_target = False
    return tuple(found)[:_NAMES]
