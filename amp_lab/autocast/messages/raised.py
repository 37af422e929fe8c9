"""What an exception tells: its message, the lines it has passed, and the other exceptions it hangs together with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from amp_lab.autocast.messages.pasted import How, Raised, has_traceback, read
from amp_lab.autocast.messages.users_code import frames

_MOST: Final = 30  # exceptions that hang together, which are looked at


def chain(error: BaseException) -> list[Raised]:
    """Return an exception, and those that it was raised from, or while handling, or that it holds; outermost first."""
    found: list[Raised] = []
    waiting: list[tuple[BaseException, How]] = [(error, "")]
    seen: set[int] = set()
    while waiting and len(found) < _MOST:
        each, how = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found += _with_text(each, how)
        waiting += reversed(list(_behind(each)))
    return found


def _behind(error: BaseException) -> Iterator[tuple[BaseException, How]]:
    if isinstance(error, BaseExceptionGroup):
        yield from ((each, "inside") for each in error.exceptions)
    if error.__cause__ is not None:
        yield error.__cause__, "cause"
    elif error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__, "context"


def _with_text(error: BaseException, how: How) -> list[Raised]:
    """Return an exception, and the tracebacks that stand in its text: those of a DataLoader's workers do."""
    message, passed = message_of(error), tuple(frames(error.__traceback__))
    module = type(error).__module__
    if not has_traceback(message):
        return [Raised(message, passed, how, module)]
    first, *inside = read(message)
    own = Raised(message if not inside else first.message, (*passed, *first.passed), how, module)
    return [own, *inside]


def message_of(error: BaseException) -> str:
    """Return the text of an exception with its class before it, as below a traceback."""
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception as broken:
        return f"{name}: (its text cannot be read: __str__ raised {type(broken).__name__})"
    return f"{name}: {text}" if text else name
