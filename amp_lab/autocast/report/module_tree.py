"""The operators of an x-ray as a tree of modules, in which what repeats stands once.

TransformerEncoder
├─ layers.0        linear, scaled_dot_product_attention, …
├─ layers.1        the same operators in other dtypes: it is given FP16 instead of FP32
└─ × 10            layers.2 … layers.11 are like layers.1

The same means: the same classes of modules with the same names in them, the same operators, dtypes and sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from amp_lab.autocast.records import Op

_CONTAINERS: Final = {"ModuleList", "ModuleDict", "Sequential", ""}
_LONGEST_PERIOD: Final = 32  # items that repeat as a group, such as the operators of one step in time
_WORTH_FOLDING: Final = 3  # rows that a fold must save: it takes a row itself


@dataclass(frozen=True)
class Branch:
    """One call of a module: its operators and the modules it called, in order. `path` is "" for the model itself."""

    path: str
    module_type: str
    call: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Fold:
    """Groups of items, one after the other, that do the same. `items` is the first group, `last` the last one."""

    groups: tuple[tuple[Item, ...], ...]

    @property
    def items(self) -> tuple[Item, ...]:
        return self.groups[0]

    @property
    def last(self) -> tuple[Item, ...]:
        return self.groups[-1]

    @property
    def times(self) -> int:
        return len(self.groups)


Item: TypeAlias = "Op | Branch | Fold"


@dataclass
class _Growing:
    path: str
    call: int | None = None
    items: list[Op | _Growing] = field(default_factory=list)


def module_tree(ops: Iterable[Op], types: Mapping[str, str], fold: bool = True) -> Branch:
    """Arrange operators by the modules that ran them, in the order in which they ran.

    A container without operators of its own, such as a ModuleList, is left out: its children stand in its parent.

    Args:
        ops: of one phase; those that tables leave out are left out before.
        types: the class name of each module, by its path.
        fold: whether neighbours that do the same are put together.
    """
    ops = tuple(ops)
    types = {op.module: op.module_type for op in ops} | dict(types)
    items = [_finished(each, types, fold) for each in _grown(ops).items]
    flat = tuple(each for group in items for each in group)
    return Branch("", types.get("", ""), 1, folded(flat, "") if fold else flat)


def _grown(ops: Iterable[Op]) -> _Growing:
    """Put each operator into the module that is running: a stack of calls, as deep as modules are nested."""
    stack = [_Growing("", 1)]
    for op in ops:
        while not _belongs(op, stack[-1]) and len(stack) > 1:
            stack.pop()
        while stack[-1].path != op.module:
            child = _Growing(_one_deeper(stack[-1].path, op.module))
            stack[-1].items.append(child)
            stack.append(child)
        if len(stack) > 1:
            stack[-1].call = op.call
        stack[-1].items.append(op)
    return stack[0]


def _belongs(op: Op, module: _Growing) -> bool:
    if op.module == module.path:
        return module.call in (None, op.call)
    return inside(op.module, module.path)


def inside(path: str, module: str) -> bool:
    """Return whether a path is that of a module or of one in it: "layers.0.norm" is inside "layers.0"."""
    return not module or path == module or path.startswith(module + ".")


def _one_deeper(path: str, target: str) -> str:
    start = len(path) + 1 if path else 0
    return target[:start] + target[start:].partition(".")[0]


def _finished(item: Op | _Growing, types: Mapping[str, str], fold: bool) -> tuple[Item, ...]:
    if isinstance(item, Op):
        return (item,)
    children = tuple(each for child in item.items for each in _finished(child, types, fold))
    module_type = types.get(item.path, "")
    if module_type in _CONTAINERS and not any(isinstance(each, Op) for each in children):
        return children
    return (
        Branch(item.path, module_type, item.call or 1, folded(children, item.path) if fold else children),
    )


def folded(items: Sequence[Item], parent: str) -> tuple[Item, ...]:
    """Put neighbours that do the same into one Fold. `parent` is the path of the module that they stand in."""
    numbers: dict[object, int] = {}
    kinds = [
        numbers.setdefault((_siblings(each, parent), signature(each, parent)), len(numbers)) for each in items
    ]
    result: list[Item] = []
    place = 0
    while place < len(items):
        length, times = _best_period(kinds, place, items)
        if times == 1:
            result.append(items[place])
        else:
            starts = range(place, place + length * times, length)
            result.append(Fold(tuple(tuple(items[start : start + length]) for start in starts)))
        place += length * times
    return tuple(result)


def _best_period(kinds: list[int], place: int, items: Sequence[Item]) -> tuple[int, int]:
    """Return the length of the group that repeats from here on and how often; (1, 1) if nothing does."""
    best, most_saved = (1, 1), _WORTH_FOLDING - 1
    for length in range(1, min(_LONGEST_PERIOD, (len(kinds) - place) // 2) + 1):
        times = _repeats(kinds, place, length)
        saved = (times - 1) * sum(map(rows, items[place : place + length])) if times > 1 else 0
        if saved > most_saved:
            best, most_saved = (length, times), saved
    return best


def _repeats(kinds: list[int], place: int, length: int) -> int:
    group, times = kinds[place : place + length], 1
    while kinds[place + times * length : place + (times + 1) * length] == group:
        times += 1
    return times


def _siblings(item: Item, parent: str) -> str:
    """Return what the paths of neighbours must share: layers.0 and layers.1 do, conv1 and conv2 do not."""
    if not isinstance(item, Branch):
        return ""
    parts = relative(item.path, parent).split(".")
    for place in range(len(parts) - 1, -1, -1):
        if parts[place].isdecimal():
            parts[place] = "#"
            break
    return ".".join(parts)


def signature(item: Item, parent: str) -> object:
    """Return what two items must share to be the same, wherever they stand: modules, operators, dtypes and shapes.

    The name of an item itself is no part of it; those of what is in it are.
    """
    if isinstance(item, Branch):
        inner = tuple((_name(each, item.path), signature(each, item.path)) for each in item.items)
        return item.module_type, inner
    if isinstance(item, Fold):
        return item.times, tuple((_name(each, parent), signature(each, parent)) for each in item.items)
    casts = tuple((each.value.dtype, each.dtype, each.copied) for each in item.casts)
    taken = tuple((each.dtype, each.shape) for each in item.inputs)
    given = tuple((each.dtype, each.shape) for each in item.outputs)
    return item.name, item.within, item.dtype, item.region, item.fate, taken, casts, given, item.error


def _name(item: Item, parent: str) -> str:
    return relative(item.path, parent) if isinstance(item, Branch) else ""


def rows(item: Item) -> int:
    """Return how many rows of a table an item takes: one for an operator, one more for a module with several."""
    if isinstance(item, Branch):
        return 1 if only_op(item) else 1 + sum(map(rows, item.items))
    if isinstance(item, Fold):
        return 1 + sum(map(rows, item.items))
    return 1


def only_op(branch: Branch) -> Op | None:
    """Return the operator of a module that is no more than one, such as a Linear; else None."""
    only = branch.items[0] if len(branch.items) == 1 else None
    return only if isinstance(only, Op) else None


def ops_in(item: Item) -> Iterator[Op]:
    """Yield all operators of an item, those that are folded away, too."""
    if isinstance(item, Op):
        yield item
        return
    inner = item.items if isinstance(item, Branch) else tuple(each for group in item.groups for each in group)
    for each in inner:
        yield from ops_in(each)


def relative(path: str, parent: str) -> str:
    """Return a module's path as seen from a parent: "norm" for "layers.0.norm" in "layers.0"."""
    return path[len(parent) + 1 :] if parent and inside(path, parent) else path


def one_module(fold: Fold) -> Branch | None:
    """Return the first of modules that repeat, if it is whole modules one after the other, with several rows each."""
    first = fold.items[0]
    return first if len(fold.items) == 1 and isinstance(first, Branch) and not only_op(first) else None


def span(fold: Fold, parent: str) -> str:
    """Name the modules that a fold stands for: "layers.1 … layers.11"; nothing where it begins or ends without one."""
    first, last = fold.items[0], fold.last[-1]
    if not isinstance(first, Branch) or not isinstance(last, Branch):
        return ""
    names = dict.fromkeys((relative(first.path, parent), relative(last.path, parent)))
    return " … ".join(names)
