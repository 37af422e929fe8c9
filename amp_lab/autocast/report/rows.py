"""The rows of an x-ray's table: modules, operators in them, and what repeats; and the sentences around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Op, Phase
from amp_lab.autocast.report.module_tree import (
    Branch,
    Fold,
    Item,
    inside,
    module_tree,
    one_module,
    only_op,
    relative,
    span,
)
from amp_lab.autocast.report.summary import PHASES, Counts, counts, is_cast, of_phase, written
from amp_lab.autocast.report.words import (
    bytes_in_words,
    casts_in_words,
    counted,
    dtype_in_words,
    dtypes_of,
    given_in_words,
    op_in_words,
    outputs_in_words,
    place_in_table,
)
from amp_lab.view.words import name_in_words

if TYPE_CHECKING:
    from amp_lab.autocast.hurts.remarks import Remark
    from amp_lab.autocast.report.xrayed import XRay

_HALVES: Final = (torch.float16, torch.bfloat16)
HEADS: Final = ("#", "operator", "took", "casts", "ran in", "gave", "why", "line")
LIMIT: Final = 60  # rows


@dataclass(frozen=True)
class Selection:
    """Which operators a table lists: of one phase or all (None), of one module or all, at most `limit` rows."""

    phase: Phase | None = "forward"
    module: str | None = None
    limit: int | None = LIMIT
    fold: bool = True
    views: bool = False

    def ops(self, ops: Iterable[Op], phase: Phase) -> list[Op]:
        """Return the operators of a phase that were asked for, views among them."""
        return [op for op in of_phase(ops, phase) if self.module is None or inside(op.module, self.module)]

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that were asked for, in the order of a training step."""
        return PHASES if self.phase is None else (self.phase,)


class Row(NamedTuple):
    """A line of a table: an operator with its cells; or, without an operator, a module or a fold."""

    depth: int
    label: str
    op: Op | None = None


def checked(xray: XRay, selection: Selection) -> Selection:
    """Return the selection.

    Raises:
        TypeError: if limit is neither a whole number nor None, or module no text.
        ValueError: if there is no such phase or module, or limit is negative.
    """
    limit, module = selection.limit, selection.module
    if selection.phase not in (None, *PHASES):
        raise ValueError(
            f"phase={selection.phase!r}: it is one of {', '.join(map(repr, PHASES))}, or None for all"
        )
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"limit={limit!r}: it is how many rows to list, such as {LIMIT}, or None for all")
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: it is how many rows to list, 0 or more, or None for all")
    if module is not None and not isinstance(module, str):
        raise TypeError(f"module={module!r}: it is the path of a module, such as 'layers.0', or None for all")
    if module is not None and not _ran(xray, module):
        known = ", ".join(repr(path) for path in dict.fromkeys(op.module for op in xray.ops))
        raise ValueError(
            f"module={module!r}: no operator ran in it; some ran in {known or 'no module at all'}"
        )
    return selection


def checked_depth(depth: Any) -> None:
    """Raise an error unless `depth` is a number of levels, or None."""
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int)):
        raise TypeError(f"depth={depth!r}: it is how many levels of modules to open, such as 2, or None")
    if depth is not None and depth < 0:
        raise ValueError(f"depth={depth}: it is how many levels of modules to open, 0 or more, or None")


def _ran(xray: XRay, module: str) -> bool:
    return any(inside(op.module, module) for op in xray.ops)


def tree(xray: XRay, selection: Selection, phase: Phase) -> Branch:
    """Arrange the operators that were asked for by module."""
    shown = selection.ops(xray.ops, phase)
    if not selection.views:
        shown = [op for op in shown if not op.view]
        shown = [
            op for op in shown if not op.bookkeeping
        ] or shown  # where there is nothing else, it is shown
    return module_tree(shown, dict(xray.module_types), selection.fold)


def all_rows(xray: XRay, selection: Selection) -> Iterator[Row]:
    """Yield the rows that were asked for; of several phases, each below a row with its name."""
    for phase in selection.phases():
        found = list(rows(tree(xray, selection, phase)))
        if found and len(selection.phases()) > 1:
            yield Row(0, f"{phase}:")
        yield from found


def rows(branch: Branch) -> Iterator[Row]:
    """Yield the rows of a tree, the model itself aside."""
    for item in branch.items:
        yield from _rows(item, 0, branch.path)


def _rows(item: Item, depth: int, parent: str) -> Iterator[Row]:
    if isinstance(item, Op):
        yield Row(depth, op_name(item), item)
        return
    inner, below = item.items, depth
    if isinstance(item, Branch):
        only = only_op(item)
        if only:
            yield Row(depth, f"{module_in_words(item, parent)}: {op_name(only)}", only)
            return
        yield Row(depth, module_in_words(item, parent))
        parent, below = item.path, depth + 1
    elif module := one_module(item):
        yield Row(depth, fold_in_words(item, parent))
        inner, parent, below = module.items, module.path, depth + 1
    for each in inner:
        yield from _rows(each, below, parent)
    if isinstance(item, Fold) and not one_module(item):
        yield Row(depth, f"⋮ {more_in_words(item, parent)}")


def op_name(op: Op) -> str:
    """Name an operator, and the custom autograd function that called it: "linear", "Swish: mul"."""
    return name_in_words(f"{op.within}: {op.name}" if op.within else op.name)


def module_in_words(branch: Branch, parent: str) -> str:
    """Name a module: "norm1", "self_attn (MultiheadAttention)", "act, call 2"."""
    kind = f" ({name_in_words(branch.module_type)})" if branch.module_type and not only_op(branch) else ""
    return f"{name_of(branch, parent)}{kind}"


def name_of(branch: Branch, parent: str) -> str:
    """Name a module without its class: "norm1", "act, call 2"."""
    name = name_in_words(relative(branch.path, parent))
    return f"{name}, call {branch.call}" if branch.call > 1 else name


def fold_in_words(fold: Fold, parent: str) -> str:
    """Say what a fold stands for: "layers.1 … layers.11 (Block): 11 times the same"."""
    module, names = one_module(fold), name_in_words(span(fold, parent))
    kind = f" ({name_in_words(module.module_type)})" if module and module.module_type else ""
    return f"{names}{kind}{': ' if names else ''}{fold.times:,} times the same"


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of HEADS; a module has only its name."""
    op = row.op
    if op is None:
        return ("", row.label, *[""] * (len(HEADS) - 2))
    return (
        str(op.number),
        row.label,
        dtypes_of(op.inputs),
        own_cast_in_words(op) if is_cast(op) else casts_in_words(op.casts),
        dtype_in_words(op.dtype),
        "raised" if op.error else outputs_in_words(op.outputs),
        why(op),
        place_in_table(op.source),
    )


def more_in_words(fold: Fold, parent: str) -> str:
    """Say what is not listed below the first group of a fold: "and 3 more like this (cell.0 … cell.3)"."""
    names = name_in_words(span(fold, parent))
    return f"and {fold.times - 1:,} more like this" + (f" ({names})" if " … " in names else "")


def own_cast_in_words(op: Op) -> str:
    """Write a cast that is an operator of its own, as those of gradients are, with its bytes: "FP16→FP32 24.6 kB"."""
    source, target = op.inputs[0].dtype, op.outputs[0].dtype
    return f"{dtype_in_words(source)}→{dtype_in_words(target)} {bytes_in_words(written(op))}"


def why(op: Op) -> str:
    """Say in two or three words why an operator ran in its dtype."""
    if op.fate in (Fate.LOWER, Fate.FP32, Fate.FP32_UNLESS) and op.dtype is not None:
        if op.dtype not in (*_HALVES, torch.float32):
            return f"{dtype_in_words(op.dtype)} is left alone"
        if op.fate is Fate.FP32_UNLESS and op.dtype in _HALVES:
            return f"{dtype_in_words(op.dtype)} was passed as dtype"
    if op.fate is not None:
        return op.fate.value
    if op.phase == "backward":
        return f"gradient of #{op.forward}" if op.forward is not None else "backward pass"
    return "autocast is off" if op.region is None else "autocast did not see it"


def title(xray: XRay) -> str:
    """Say what was x-rayed, and how; and why so, where there is something to say."""
    region = f'torch.autocast("{xray.device_type}", {xray.dtype})'
    how = "dtypes and shapes only, no numbers" if xray.mode == "fake" else "with real numbers"
    why_so = f" ({xray.mode_reason})" if xray.mode_reason else ""
    return f"{name_in_words(xray.model)} under {region}, {xray.mode} mode: {how}{why_so}"


def phase_in_words(xray: XRay, phase: Phase) -> str:
    """Count what a phase did: "forward: 14 operators: 6 FP16, 8 FP32; 11 casts copied 24.6 kB, 2 more were cached"."""
    own = "of gradients" if phase == "backward" else "of the model's code"
    return f"{phase}: {counts_in_words(counts(of_phase(xray.ops, phase)), own)}"


def counts_in_words(found: Counts, own: str = "of the model's code") -> str:
    """Count operators by dtype, and casts; `own` says whose those are that autocast did not make."""
    by_dtype = ", ".join(
        f"{number:,} {dtype_in_words(dtype)}" for dtype, number in found.dtypes.items() if dtype
    )
    without = found.dtypes.get(None, 0)
    parts = [
        part for part in (by_dtype, f"{without:,} without floating-point numbers" if without else "") if part
    ]
    said = f"{counted(found.ops, 'operator')}: {', '.join(parts)}" if found.ops else "no operator"
    made = found.casts - found.cached
    if made:
        said += f"; {counted(made, 'cast')} copied {bytes_in_words(found.copied)}"
    if found.cached:
        said += f"{',' if made else ';'} {counted(found.cached, 'cast')} came from the cache of weights"
    if found.own:
        said += f"; {counted(found.own, 'cast')} {own} copied {bytes_in_words(found.own_copied)}"
    return said


def notes(xray: XRay, selection: Selection, listed: int, available: int) -> Iterator[str]:
    """Yield what the table does not show."""
    if listed < available:
        yield f"{counted(available - listed, 'more row')}: table(limit=None) lists all."
    asked = [op for phase in selection.phases() for op in selection.ops(xray.ops, phase)]
    views = sum(op.view for op in asked)
    counters = sum(op.bookkeeping and not op.view for op in asked)
    hidden = [f"{counted(views, 'view')} not listed, which copy nothing"] if views else []
    if counters and any(not op.bookkeeping and not op.view for op in asked):
        listed_not = "" if hidden else " not listed"
        hidden.append(f"{counted(counters, 'operator')} without floating-point numbers{listed_not}")
    if hidden and not selection.views:
        yield f"{', and '.join(hidden)}: table(views=True) lists them."
    others = [phase for phase in PHASES if phase not in selection.phases() and of_phase(xray.ops, phase)]
    if others:
        said = " and ".join(f'table(phase="{phase}")' for phase in others)
        yield f"Not listed: the {' and the '.join(others)} operators; {said} {'does' if len(others) == 1 else 'do'}."


def warnings(xray: XRay) -> Iterator[Remark]:
    """Yield the warnings but for that of the operator that raised: the error at the end says the same."""
    failed = _failed(xray)
    for remark in xray.warnings:
        if failed is None or remark.id not in ("raises", "refused") or remark.ops != (failed.number,):
            yield remark


def _failed(xray: XRay) -> Op | None:
    """Return the operator with which the model failed, if it was one."""
    failed = [op for op in xray.ops if op.error] if xray.error is not None else []
    return failed[-1] if failed else None


def error_lines(xray: XRay) -> Iterator[str]:
    """Yield what the model raised, where, and what to do about it."""
    if xray.error is None:
        return
    failed = _failed(xray)
    where = f" at {op_in_words(failed)}, which {given_in_words(failed)}" if failed else ""
    yield f"The model failed{where}; nothing after that ran."
    yield str(xray.explanation) if xray.explanation else xray.error


NOTHING: Final = (
    "No operator of PyTorch ran: there is nothing to see. Is the work done in NumPy, or on values that were computed "
    "before? xray(model, *inputs) sees what model(*inputs) computes with tensors."
)
