"""The lines of a report, for every form that it is shown in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.view.words import name_in_words
from amp_lab.watching.replaying.causes.words import kinds, power, row_in_words
from amp_lab.watching.replaying.ids import CAUSES
from amp_lab.watching.replaying.records import Range, Replay
from amp_lab.watching.words import counted, in_words, place_in_words

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport

_MOST = 4  # further operators, and tensors of one


def head(report: OverflowReport) -> str:
    """Write the cause: "forward-overflow: a result leaves its format in the forward pass"."""
    return f"{report.cause}: {CAUSES[report.cause]}"


def facts(report: OverflowReport) -> Iterator[tuple[str, list[str]]]:
    """Yield what there is to say, beside its name: the place, the numbers, the scale, the runs, and what to do."""
    if report.source is not None:
        yield "where", [place_in_words(report.source)]
    if report.first is not None:
        yield "went in", [range_in_words(each) for each in report.first.inputs[:_MOST]]
        yield "came out", [range_in_words(each) for each in report.first.outputs[:_MOST]]
    if not report.ok and report.first is not None and report.first.truth is not None:
        yield "should be", [range_in_words(report.first.truth, typed=False)]
    if any(not each.finite for each in report.replays):
        yield "scale", [_cure(report)]
    runs = sorted(report.replays, key=lambda each: (each.fp32, -each.scale))
    yield "runs", [replay_in_words(each) for each in runs]
    if report.others:
        more = report.others[_MOST:]
        yield (
            "also",
            [row_in_words(each) for each in report.others[:_MOST]]
            + ([f"{len(more):,} more"] if more else []),
        )
    yield "do", [report.advice]
    if report.notes:
        yield "note", [name_in_words(each) for each in report.notes]
    yield "took", [f"{in_words(report.seconds)} s"]


def range_in_words(each: Range, typed: bool = True) -> str:
    """Write a tensor's numbers: "(32, 16) FP16, 9 to 260, 4 of 512 infinite"."""
    name = f"{each.name}: " if each.name else ""
    kind = f"{tuple(each.shape)} {dtype_in_words(each.dtype)}, " if typed else ""
    bad = each.infinite + each.nan
    if each.of == 0:
        return f"{name}{kind}no numbers"
    span = f"{in_words(each.smallest)} to {in_words(each.largest)}" if bad < each.of else "no finite number"
    counts = f", {kinds(bool(each.infinite), bool(each.nan))} in {bad:,} of {each.of:,}" if bad else ""
    return f"{name}{kind}{span}{counts}"


def replay_in_words(each: Replay) -> str:
    """Write a run: "scale 2^16: loss 0.693, gradients of 2 of 8 parameters not finite"."""
    run = "FP32" if each.fp32 else f"scale {power(each.scale)}"
    if not each.parameters:
        return f"{run}: loss {in_words(each.loss)}, no gradients"
    gradients = (
        f"gradients of {len(each.bad):,} of {counted(each.parameters, 'parameter')} not finite"
        if each.bad
        else "gradients finite"
    )
    return f"{run}: loss {in_words(each.loss)}, {gradients}"


def _cure(report: OverflowReport) -> str:
    if not report.cures or report.scale is None:
        return "no loss scale makes this batch finite"
    return f"the batch is finite from {power(report.scale)} down"
