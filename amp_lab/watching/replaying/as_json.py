"""A report on an overflow as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from amp_lab.autocast.messages.users_code import readable
from amp_lab.autocast.records import Source
from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.replaying.records import Range, Replay, Traced
from amp_lab.watching.words import in_words

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport

VERSION: Final = 1  # of this layout


def as_dict(report: OverflowReport) -> dict[str, Any]:
    """Return a report as dicts, lists, texts, numbers, truth values and None, ready for `json.dumps`."""
    return {
        "version": VERSION,
        "torch": str(torch.__version__),
        "ok": report.ok,
        "cause": report.cause,
        "sentence": report.sentence,
        "advice": report.advice,
        "phase": report.phase,
        "op": report.op,
        "module": report.module,
        "module_type": report.module_type,
        "source": None if report.source is None else _source(report.source),
        "first": None if report.first is None else _row(report.first),
        "limit": report.limit,
        "true_size": _number(report.true_size),
        "cures": report.cures,
        "scale": report.scale,
        "replays": [_replay(each) for each in report.replays],
        "others": [_row(each) for each in report.others],
        "notes": list(report.notes),
        "seconds": report.seconds,
    }


def _row(row: Traced) -> dict[str, Any]:
    return {
        "op": row.op.name,
        "phase": row.op.phase,
        "module": row.op.module,
        "source": None if row.op.source is None else _source(row.op.source),
        "inputs": [_range(each) for each in row.inputs],
        "outputs": [_range(each) for each in row.outputs],
        "truth": None if row.truth is None else _range(row.truth),
    }


def _range(each: Range) -> dict[str, Any]:
    return {
        "name": each.name,
        "shape": list(each.shape),
        "dtype": dtype_in_words(each.dtype),
        "smallest": each.smallest,
        "largest": each.largest,
        "positive_infinities": each.positive,
        "negative_infinities": each.negative,
        "nan": each.nan,
        "zeros": each.zeros,
        "numbers": each.of,
    }


def _replay(each: Replay) -> dict[str, Any]:
    return {
        "scale": each.scale,
        "fp32": each.fp32,
        "loss": _number(each.loss),
        "finite": each.finite,
        "bad": list(each.bad),
        "parameters": each.parameters,
    }


def _source(where: Source) -> dict[str, Any]:
    return {"file": readable(where.file), "line": where.line, "function": where.function, "text": where.text}


def _number(value: float | None) -> float | str | None:
    """Return a number, or its name where JSON has none for it."""
    return value if value is None or math.isfinite(value) else in_words(value)
