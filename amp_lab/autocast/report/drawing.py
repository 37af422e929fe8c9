"""An x-ray as a drawing: its tree of modules, opened as far as it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from amp_lab.autocast.records import Op, Phase, Value
from amp_lab.autocast.report import rows as lines
from amp_lab.autocast.report.module_tree import Branch, Fold, Item, one_module, only_op, ops_in, span
from amp_lab.autocast.report.summary import PHASES, is_cast, of_phase
from amp_lab.autocast.report.words import counted, dtype_in_words
from amp_lab.view.dtype_rows import NO_FLOATS, Arrow, Cell, Group, Row
from amp_lab.view.dtype_rows import Item as Drawn
from amp_lab.view.dtype_rows import rows as every_row
from amp_lab.view.dtype_tree import dtype_tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from amp_lab.autocast.report.xrayed import XRay

_MOST: Final = 45  # rows of a figure that fits on a page
_DEEPEST: Final = 20


def draw(
    xray: XRay, phase: Phase | Literal["both"], module: str | None, depth: int | None, title: str | None
) -> Figure:
    """Draw an x-ray; see `XRay.plot`."""
    if phase not in (*PHASES, "both"):
        raise ValueError(f"phase={phase!r}: it is one of {', '.join(map(repr, (*PHASES, 'both')))}")
    lines.checked_depth(depth)
    main: Phase = "forward" if phase == "both" else phase
    selection = lines.checked(xray, lines.Selection(main, module))
    tree = lines.tree(xray, selection, main)
    if not tree.items:
        raise ValueError(_nothing(xray, main, module))
    opened = tree
    while len(opened.items) == 1 and isinstance(opened.items[0], Branch) and not only_op(opened.items[0]):
        opened = opened.items[0]  # with `module`, the modules around it are no news
    drawn = _Drawn(_gradients(xray) if phase == "both" else None)
    items = drawn.items(opened.items, opened.path, depth) if depth is not None else _fitting(drawn, opened)
    phases = ("forward ↓", "backward ↑") if phase == "both" else (main,)
    return dtype_tree(items, phases, title or _title(xray, phase, module), _note(xray, main, items))


_LETTERS: Final = {
    "x": "a tensor",
    "w": "a weight or bias",
    "w*": "a weight or bias from autocast's cache",
    "g": "a gradient",
}


def _note(xray: XRay, phase: Phase, items: Sequence[Drawn]) -> str:
    """Explain what is drawn, and nothing else."""
    drawn = list(every_row(items))
    labels = [arrow.label for row in drawn for cell in row.cells for arrow in cell.casts]
    letters = {part.rpartition(" ")[2] for label in labels for part in label.split(", ")}
    meant = ", ".join(f"{each} is {_LETTERS[each]}" for each in _LETTERS if each in letters)
    said = (
        [f"Arrows are casts, from the dtype that came to the one that was needed: {meant}."] if meant else []
    )
    if len(drawn) > 1:
        said.append("The grey line follows the order in which operators ran.")
    ops = of_phase(xray.ops, phase)
    left = ["views"] if any(op.view for op in ops) else []
    if NO_FLOATS not in {dtype for row in drawn for cell in row.cells for dtype in cell.ran}:
        left += ["operators without floating-point numbers"] if any(op.bookkeeping for op in ops) else []
    if left:
        said.append(f"{' and '.join(left).capitalize()} are left out.")
    return " ".join(said)


def _title(xray: XRay, phase: str, module: str | None) -> str:
    what = f"{module} of {xray.model}" if module else xray.model
    where = {"cuda": "CUDA", "cpu": "the CPU"}.get(xray.device_type, xray.device_type)
    passes = {"forward": "", "both": ", forward and backward"}.get(phase, f", {phase} pass")
    return f"{what}: the dtype of every operator, {dtype_in_words(xray.dtype)} autocast on {where}{passes}"


def _nothing(xray: XRay, phase: Phase, module: str | None) -> str:
    if not xray.ops:
        return f"there is nothing to draw. {lines.NOTHING}"
    place = f" in {module!r}" if module else ""
    ran = [each for each in PHASES if of_phase(xray.ops, each)]
    return f"there is nothing to draw: no {phase} operator ran{place}; the phases are {', '.join(map(repr, ran))}"


def _fitting(drawn: _Drawn, branch: Branch) -> Sequence[Drawn]:
    """Open as many levels as fit on a page; where even none does, the first rows and a count of the others."""
    for depth in range(_DEEPEST, -1, -1):
        items = drawn.items(branch.items, branch.path, depth)
        if _height(items) <= _MOST:
            return items
    return [
        *items[: _MOST - 1],
        drawn.closed(f"… {len(items) - _MOST + 1:,} more rows", branch.items[_MOST - 1 :]),
    ]


def _height(items: Iterable[Drawn]) -> int:
    return sum(1 if isinstance(each, Row) else bool(each.label) + _height(each.items) for each in items)


def _gradients(xray: XRay) -> Mapping[int, list[Op]]:
    """Return the backward operators of each forward one, by its number."""
    found: dict[int, list[Op]] = {}
    for op in of_phase(xray.ops, "backward"):
        if op.forward is not None and not op.view:
            found.setdefault(op.forward, []).append(op)
    return found


class _Drawn:
    """What is to be drawn for items of the tree; with gradients, a second cell for each row."""

    def __init__(self, gradients: Mapping[int, list[Op]] | None):
        self._gradients = gradients

    def items(self, items: Iterable[Item], parent: str, depth: int) -> list[Drawn]:
        return [self._item(each, parent, depth) for each in items]

    def _item(self, item: Item, parent: str, depth: int) -> Drawn:
        if isinstance(item, Op):
            return self._op(lines.op_name(item), item)
        if isinstance(item, Fold):
            return self._fold(item, parent, depth)
        only = only_op(item)
        if only:
            return self._op(f"{lines.module_in_words(item, parent)}: {lines.op_name(only)}", only)
        name = lines.name_of(item, parent)
        if depth == 0:
            return self.closed(f"{name} ({item.module_type})", item.items)
        return Group(name, item.module_type, self.items(item.items, item.path, depth - 1))

    def _fold(self, fold: Fold, parent: str, depth: int) -> Drawn:
        inner = self.items(fold.items, parent, depth)
        module, names = one_module(fold), span(fold, parent)
        if module is None:
            return Group("", "", inner, fold.times)
        if isinstance(inner[0], Group):
            return inner[0]._replace(label=names, times=fold.times)
        return Group("", "", [self.closed(f"{names} ({module.module_type})", module.items)], fold.times)

    def _op(self, label: str, op: Op) -> Row:
        return Row(label, self._cells([op], single=True), failed=op.error is not None)

    def closed(self, label: str, items: Iterable[Item]) -> Row:
        """Return one row for all operators of some items. Its casts are counted: arrows would hide the marks."""
        ops = [op for item in items for op in ops_in(item)]
        casts = sum(len(op.casts) for op in ops)
        said = f"{label}: {counted(casts, 'cast')}" if casts else label
        return Row(said, self._cells(ops, single=False), failed=any(op.error for op in ops))

    def _cells(self, ops: Sequence[Op], single: bool) -> list[Cell]:
        cells = [_cell(ops, single)]
        if self._gradients is not None:
            backward = [each for op in ops for each in self._gradients.get(op.number, ())]
            cells.append(_cell(backward, single))
        return cells


def _cell(ops: Sequence[Op], single: bool) -> Cell:
    """Say in which dtypes operators ran, and with which casts; of several operators, how many ran in each dtype."""
    if not single:
        return Cell({dtype: f"× {number:,}" for dtype, number in Counter(map(_column, ops)).items()})
    return Cell(
        # Casts of gradients have a row of their own in the x-ray; here they are arrows beside the gradient.
        {_column(op): _mark(op) for op in ops if op.phase != "backward" or not is_cast(op)},
        _arrows(_casts(ops)),
    )


def _arrows(ways: Mapping[tuple[str, str], Counter[str]]) -> list[Arrow]:
    """Return an arrow for each direction; one with two heads where casts go there and back."""
    arrows = []
    for (source, target), kinds in ways.items():
        back = ways.get((target, source))
        if back is None:
            arrows.append(Arrow(source, target, _letters(kinds)))
        elif source < target:
            arrows.append(Arrow(source, target, _letters(kinds + back), both=True))
    return arrows


def _column(op: Op) -> str:
    """Return the dtype in which an operator ran; of a cast in the code of the model, the one that it makes."""
    dtype = op.outputs[0].dtype if is_cast(op) else op.dtype
    return dtype_in_words(dtype) if dtype and (dtype.is_floating_point or dtype.is_complex) else NO_FLOATS


def _mark(op: Op) -> str:
    column = _column(op)
    return column if column != NO_FLOATS or not op.outputs else dtype_in_words(op.outputs[0].dtype)


def _casts(ops: Iterable[Op]) -> dict[tuple[str, str], Counter[str]]:
    """Count casts by direction and by what was cast: "x" for a tensor, "w" for a weight, "w*" for one in the cache."""
    ways: dict[tuple[str, str], Counter[str]] = {}
    for op in ops:
        for cast in op.casts:
            kind = "x" if cast.value.name is None else "w" if cast.copied else "w*"
            ways.setdefault((dtype_in_words(cast.value.dtype), dtype_in_words(cast.dtype)), Counter())[
                kind
            ] += 1
        if is_cast(op):
            way = _column_of(op.inputs[0]), _column(op)
            ways.setdefault(way, Counter())["g" if op.phase == "backward" else "x"] += 1
    return ways


def _column_of(value: Value) -> str:
    return dtype_in_words(value.dtype) if value.dtype.is_floating_point else NO_FLOATS


def _letters(kinds: Counter[str]) -> str:
    ordered = sorted(kinds.items(), reverse=True)
    return ", ".join(kind if number == 1 else f"{number} {kind}" for kind, number in ordered)
