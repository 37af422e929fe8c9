"""How many loops the watcher judges rightly, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.watching.loops.collection import Loop, Outcome


@dataclass
class Row:
    """One section: how many loops, and what was said about them."""

    loops: int = 0
    right: int = 0  # exactly the expected root cause, or silence
    missed: int = 0  # a mistake of which nothing is said
    wrong: int = 0  # another root cause, or more than one; a false alarm


def tables(judged: Iterable[tuple[Loop, Outcome]]) -> str:
    """Return both counts as text: loops with a mistake, and loops that are right."""
    mistakes: dict[str, Row] = {}
    rights: dict[str, Row] = {}
    for loop, outcome in judged:
        row = (mistakes if loop.cause else rights).setdefault(loop.section, Row())
        row.loops += 1
        if outcome.causes == ([loop.cause] if loop.cause else []) and (loop.cause or not outcome.findings):
            row.right += 1
        elif not outcome.findings:
            row.missed += 1
        else:
            row.wrong += 1
    return "\n\n".join(
        [
            _text("with a mistake", ("loops", "right root cause", "missed", "wrong cause"), mistakes),
            _text("right", ("loops", "silent", "", "false alarms"), rights),
        ]
    )


def _text(what: str, columns: tuple[str, ...], rows: dict[str, Row]) -> str:
    total = Row()
    for each in rows.values():
        for name, number in vars(each).items():
            setattr(total, name, getattr(total, name) + number)
    lines = [_line(what, columns)]
    for section, row in [*rows.items(), ("together", total)]:
        numbers = (row.loops, row.right, row.missed, row.wrong)
        lines.append(
            _line(
                section, tuple(str(n) if column else "" for n, column in zip(numbers, columns, strict=True))
            )
        )
    return "\n".join(lines)


def _line(first: str, others: tuple[str, ...]) -> str:
    return f"{first:42}" + "".join(f"{each:>18}" for each in others)
