"""Rows, numbers and limits, as the sentence about a cause writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.replaying.flow import size, true_size
from amp_lab.watching.replaying.records import Traced
from amp_lab.watching.words import in_words, line_in_words, listed, shortened

NO_SCALE = "No loss scale changes the forward pass."


def row_in_words(row: Traced) -> str:
    """Write a row with its place: "linear in layers.2.ff (train.py:31)"."""
    op = row.op
    back = op.phase != "forward"
    if op.name == "to":
        name = "the cast of the gradient" if back else "the cast"
    else:
        name = f"the gradient of {op.name}" if back and op.forward is not None else op.name
    where = f" in {shortened(op.module)}" if op.module else ""
    numbered = op.module.rpartition(".")[2].isdigit()  # as in a Sequential, where the path says little
    more = [op.module_type] if numbered and op.module_type else []
    more += [line_in_words(op.source)] if op.source is not None else []
    return f"{name}{where}" + (f" ({', '.join(more)})" if more else "")


def result_dtype(row: Traced) -> torch.dtype | None:
    """Return the dtype of the results that are not finite."""
    return next((each.dtype for each in row.outputs if not each.finite), row.op.dtype)


def limit_of(row: Traced) -> float | None:
    """Return the largest number of the dtype of a row's results."""
    dtype = result_dtype(row)
    return float(torch.finfo(dtype).max) if dtype is not None and dtype.is_floating_point else None


def format_of(row: Traced) -> str:
    dtype = result_dtype(row)
    return "its format" if dtype is None else dtype_in_words(dtype)


def numbers(row: Traced, gave: str = "gave") -> str:
    """Write what a row gave, against the limit, and what it had: "gave 81,920, and FP16 ends at 65,504; what …"."""
    true, limit = true_size(row), limit_of(row)
    ends = f"and {format_of(row)} ends at {in_words(limit)}" if limit is not None else "which is not finite"
    if row.op.name == "to" and row.makes_it:
        return f"was given {in_words(size(row.inputs))}, {ends}"
    shown = true is not None and math.isfinite(true) and (limit is None or true > limit)
    had = f"what went in was no larger than {in_words(size(row.inputs))}" if row.inputs else "nothing went in"
    return f"{gave} {in_words(true) if shown else what(row)}, {ends}; {had}"


def what(row: Traced) -> str:
    """Write what is not finite in a row's results: "NaN", "infinity", "infinity and NaN"."""
    return kinds(any(each.infinite for each in row.outputs), any(each.nan for each in row.outputs))


def kinds(infinite: bool, nan: bool) -> str:
    return (
        " and ".join([*(["infinity"] if infinite else []), *(["NaN"] if nan else [])]) or "no finite number"
    )


def names_in_words(names: Sequence[str], most: int = 3) -> str:
    """Write some names: "a, b and 4 more"."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return listed([*(shortened(each, 80) for each in names[:most]), *more])


def power(scale: float) -> str:
    """Write a scale: "2^16", "2^-4", "1", "256"; the number where it is no power of two."""
    if scale > 0 and math.frexp(scale)[0] == 0.5 and not 1 <= scale < 1024:
        return f"2^{math.frexp(scale)[1] - 1}"
    return in_words(scale)
