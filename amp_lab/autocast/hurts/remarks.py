"""A remark about an x-ray, several of them, and how operators that are alike are named in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.autocast.records import Op
from amp_lab.autocast.report.words import op_in_words
from amp_lab.view.words import paragraph

if TYPE_CHECKING:
    from rich.text import Text

_STYLE: Final = "border-left: 4px solid #E69F00; padding-left: 8px; margin: 6px 0; overflow-wrap: anywhere"


@dataclass(frozen=True, repr=False)
class Remark:
    """A warning: what was seen, with its numbers, the numbers of the operators it is about, and what to do."""

    id: str
    sentence: str
    ops: tuple[int, ...]
    advice: str

    def __str__(self) -> str:
        return f"{paragraph(f'! {self.sentence}', then='  ')}\n{paragraph(self.advice, '  → ', '    ')}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<div style="{_STYLE}">{escape(self.sentence)}<br>→ {escape(self.advice)}</div>'

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(f"! {self.sentence}\n  → {self.advice}", style="yellow")


class Remarks(tuple[Remark, ...]):
    """A tuple of warnings that prints as their sentences."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self)) or _NONE

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self) or f"<p>{escape(_NONE)}</p>"


_NONE: Final = "No warnings: nothing was found that hurts this model under autocast."


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
