"""A remark about an x-ray, and how operators that are alike are named in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from amp_lab.autocast.records import Op
from amp_lab.autocast.report.words import op_in_words


@dataclass(frozen=True)
class Remark:
    """A warning: what was seen, with its numbers, the numbers of the operators it is about, and what to do."""

    id: str
    sentence: str
    ops: tuple[int, ...]
    advice: str

    def __str__(self) -> str:
        return f"{self.sentence}\n→ {self.advice}"


def alike(ops: Iterable[Op], why: Callable[[Op], object] | None = None) -> list[list[Op]]:
    """Group operators that one remark can speak of: the same name, at the same line of code, for the same reason."""
    groups: dict[object, list[Op]] = {}
    for op in ops:
        line = (op.source.file, op.source.line) if op.source else None
        groups.setdefault((op.name, line, why(op) if why else None), []).append(op)
    return list(groups.values())


def several(ops: list[Op]) -> str:
    """Name operators: the first one, and how many there are like it."""
    more = f" and {len(ops) - 1:,} more like it" if len(ops) > 1 else ""
    return f"{op_in_words(ops[0])}{more}"
