"""What the user's code calls the scaler, the optimizer, the model: for code that is to be put into it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from amp_lab.watching.recording import events as seen
from amp_lab.watching.recording.run import Run

PLACEHOLDER: Final = re.compile(r"\{((?:scaler|optimizer|model|scheduler|loss)(?: \d+)?)\}")


class Names:
    """The names of one event's frame, of the call in its line, and of other events in the same function."""

    def __init__(self, run: Run, event: seen.Event) -> None:
        self._event = event
        self._own = dict(event.names)
        self._read = dict(_of_call(event))
        self._near: dict[str, str] = {}
        read: set[tuple[type[seen.Event], int]] = set()
        for other in run.events:
            if other.where is None or not _same_function(event, other):
                continue
            for kind, name in other.names:
                self._near.setdefault(kind, name)
            if (type(other), other.where.line) not in read:
                read.add((type(other), other.where.line))
                for kind, name in _of_call(other):
                    self._near.setdefault(f"{kind} {_index(other, kind)}", name)

    def __call__(self, kind: str) -> str:
        """Return a name by its kind, "optimizer" or "optimizer 1": the kind itself, if it is called nothing."""
        bare, _, number = kind.partition(" ")
        if not number:
            return self._of_event(bare)
        if kind in self._own or kind in self._near:
            return self._own.get(kind) or self._near[kind]
        return self._of_event(bare) if int(number) == _index(self._event, bare) else f"{bare}_{number}"

    def _of_event(self, kind: str) -> str:
        """Return the name of the scaler, optimizer or model that the event is about, or of the only one."""
        wanted = (f"{kind} {_index(self._event, kind)}", kind)
        found = [self._read.get(kind)]
        found += [place.get(each) for place in (self._own, self._near) for each in wanted]
        return next(filter(None, found), kind)

    def fill(self, code: str) -> str:
        """Put the names into code."""
        return PLACEHOLDER.sub(lambda match: self(match[1]), code)


def _index(event: seen.Event, kind: str) -> int:
    """Return which scaler, optimizer or model an event is about; the first, if about several."""
    several = getattr(event, f"{kind}s", None) or (0,)
    index = getattr(event, kind, several[0])
    return index if isinstance(index, int) else 0


def _same_function(one: seen.Event, other: seen.Event) -> bool:
    places = one.where, other.where
    return None not in places and len({(each.file, each.function) for each in places if each}) == 1


def _of_call(event: seen.Event) -> Iterator[tuple[str, str]]:
    """Read names off the call in an event's line, where it is written in one: `scaler.step(optimizer)`."""
    if event.where is None:
        return
    try:
        tree = ast.parse(event.where.text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute):
            yield from _parts(event, call.func, call.args)


def _parts(event: seen.Event, called: ast.Attribute, given: list[ast.expr]) -> Iterator[tuple[str, str]]:
    owner, method = ast.unparse(called.value), called.attr
    for kinds, name, parts in _CALLS:
        if isinstance(event, kinds) and method == name:
            values: Iterable[str] = (owner, *map(ast.unparse, given))
            yield from ((part, value) for part, value in zip(parts, values, strict=False) if part)
    if isinstance(event, seen.Stepped) and method == "step":
        if event.scaler is None:
            yield "optimizer", owner
        elif given:
            yield from (("scaler", owner), ("optimizer", ast.unparse(given[0])))
    if isinstance(event, seen.ZeroGrad) and method == "zero_grad" and event.by != "hand":
        yield event.by, owner
    if isinstance(event, seen.Backward) and method == "backward" and not isinstance(called.value, ast.Call):
        yield "loss", owner


# Events, the method that they come from, and what its owner and its arguments are.
_CALLS: Final[tuple[tuple[tuple[type[seen.Event], ...], str, tuple[str, ...]], ...]] = (
    ((seen.Scaled, seen.Backward), "scale", ("scaler", "loss")),
    ((seen.Unscaled,), "unscale_", ("scaler", "optimizer")),
    ((seen.Updated,), "update", ("scaler",)),
    ((seen.ScaleRead,), "get_scale", ("scaler",)),
    ((seen.Scheduled,), "step", ("scheduler",)),
)
