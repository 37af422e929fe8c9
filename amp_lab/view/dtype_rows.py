"""The rows of a tree of modules with dtypes: what is to be drawn, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

_ORDER: Final = ("FP8", "FP16", "BF16", "FP32", "FP64")
NO_FLOATS: Final = "no floats"  # the column of what computes with integers only


class Arrow(NamedTuple):
    """A cast from one dtype to another; `label` says of what, in a few letters: "x", "2 w". `both`: and back, too."""

    source: str
    target: str
    label: str
    both: bool = False


class Cell(NamedTuple):
    """What ran in a row in one phase: for each dtype the text on its mark ("FP16", "× 14"), and casts."""

    ran: Mapping[str, str]
    casts: Sequence[Arrow] = ()


class Row(NamedTuple):
    """An operator, or a module that is not opened, with a cell for each phase. `failed`: it raised an error."""

    label: str
    cells: Sequence[Cell]
    failed: bool = False


class Group(NamedTuple):
    """A module with what is in it, or, without a label, rows that repeat. It comes `times` times in a row."""

    label: str
    kind: str
    items: Sequence[Item]
    times: int = 1


Item: TypeAlias = "Row | Group"


def rows(items: Sequence[Item]) -> Iterator[Row]:
    """Yield the rows of all groups, from top to bottom."""
    for item in items:
        if isinstance(item, Row):
            yield item
        else:
            yield from rows(item.items)


@dataclass
class Placed:
    """A row, or the frame of a group, at its height: rows are counted from the top."""

    item: Item
    depth: int
    top: int
    bottom: int


def place(items: Sequence[Item], depth: int, top: int) -> Iterator[Placed]:
    """Yield what is to be drawn, frames before what is in them. A group with a name has a row for it."""
    for item in items:
        if isinstance(item, Row):
            placed = [Placed(item, depth, top, top + 1)]
        else:
            named = bool(item.label)
            inner = list(place(item.items, depth + named, top + named))
            bottom = max([each.bottom for each in inner], default=top + named)
            placed = [Placed(item, depth, top, bottom), *inner]
        yield from placed
        top = max(each.bottom for each in placed)


def in_order(cells: Iterable[Cell]) -> list[str]:
    """Return the dtypes that cells show, from narrow to wide; others, such as integers, come last."""
    dtypes = {dtype for cell in cells for dtype in _dtypes(cell)}
    places = {dtype: place for place, dtype in enumerate(_ORDER)}
    return sorted(dtypes, key=lambda dtype: (places.get(dtype.partition(" ")[0], len(_ORDER)), dtype))


def _dtypes(cell: Cell) -> Iterator[str]:
    yield from cell.ran
    for arrow in cell.casts:
        yield from (arrow.source, arrow.target)
