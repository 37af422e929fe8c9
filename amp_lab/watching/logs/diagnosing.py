"""From a log file to a report: read, find the columns, look for each fault, and say what the log cannot show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from amp_lab.watching.logs.columns import find_columns, unread_cells
from amp_lab.watching.logs.errors import LogError
from amp_lab.watching.logs.faults.losses import loss_flat, loss_not_finite
from amp_lab.watching.logs.faults.norms import norm_at_limit, norm_follows_scale, norm_looks_scaled
from amp_lab.watching.logs.faults.scales import (
    scale_constant,
    scale_grows,
    scale_restarted,
    scale_stuck,
    scale_zero,
    undecided_jump,
)
from amp_lab.watching.logs.faults.sinking import scale_sinks
from amp_lab.watching.logs.faults.skipping import scheduler_on_skips, skips_too_many
from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import counted, in_words
from amp_lab.watching.logs.reading import read_log
from amp_lab.watching.logs.report import LogReport, RunReport
from amp_lab.watching.logs.runs import Run, read_runs, skips

# The cause before what follows from it: a finding silences those that it covers.
FAULTS: Final[tuple[Callable[[Run], Finding | None], ...]] = (
    scale_stuck,
    scale_sinks,
    scale_zero,
    loss_not_finite,
    scale_restarted,
    scale_grows,
    norm_follows_scale,
    norm_looks_scaled,
    norm_at_limit,
    loss_flat,
    scheduler_on_skips,
    skips_too_many,
    scale_constant,
)
# What is seen from one step to the next, and less surely where rows may lie several steps apart.
_BY_STEPS: Final = frozenset({"scale-stuck", "scale-restarted", "scale-grows"})
_FEWEST: Final = 5  # rows below which hardly anything can be seen
_INTERVAL: Final = 2000
_HIDDEN: Final = {
    "loss": "without the loss it is not known whether an overflow comes from the forward pass or from gradients",
    "scale": "without the loss scale its fall, its growth and most skipped steps are not seen",
    "norm": "without the gradients' norm neither underflow nor clipping of scaled gradients is seen",
    "lr": "without the learning rate it is not known whether the scheduler waits for skipped steps",
    "step": "without a step column each row is taken for one step, and whether the scheduler waits is not judged",
}


def diagnose(
    path: str | Path,
    *,
    loss: str | None = None,
    scale: str | None = None,
    norm: str | None = None,
    lr: str | None = None,
    step: str | None = None,
    skipped: str | None = None,
) -> LogReport:
    """Look in the log of a run for faults of mixed precision.

    `path` is a CSV, TSV or JSON-lines file, a trainer_state.json, or a text log with records in braces; .gz, too. The
    others name columns; what is not named is told by its usual names. The norm is that of all gradients, before
    clipping; the scale that of the loss; both without unit.

    Raises:
        LogError: for a file or a column that cannot be read; the message says what to do.
    """
    asked = {"loss": loss, "scale": scale, "norm": norm, "lr": lr, "step": step, "skipped": skipped}
    table = read_log(path)
    columns = find_columns(table, asked)
    table.notes += unread_cells(table, columns)
    runs = read_runs(table, columns)
    if not runs:
        raise LogError(f"no row of {path} has a number in the columns {', '.join(columns.values())}")
    return LogReport(str(path), columns, tuple(map(_examined, runs)), tuple(table.notes))


def _examined(run: Run) -> RunReport:
    found: list[Finding] = []
    covered: set[str] = set()
    for fault in FAULTS:
        finding = fault(run)
        if finding is not None and finding.id not in covered:
            if "step" not in run.has and finding.id in _BY_STEPS:
                finding = replace(finding, sure="possible")
            found.append(finding)
            covered |= finding.covers
    found.sort(key=lambda finding: finding.sure != "probable")
    return RunReport(
        run.name,
        len(run.rows),
        run.rows[0].step,
        run.rows[-1].step,
        tuple(found),
        tuple(_seen(run)),
        tuple(_unknown(run)),
        tuple(run.notes),
    )


def _seen(run: Run) -> Iterator[str]:
    """Say in numbers what the run did: beside "nothing found" that is what normal looks like."""
    losses = [value for _, value in run.known("loss")]
    if losses:
        yield f"loss {in_words(losses[0])} → {in_words(losses[-1])}"
    scales = [value for _, value in run.known("scale")]
    if len(set(scales)) == 1:
        yield f"scale {in_words(scales[0])} in all rows"
    elif scales:
        up = sum(change.powers > 0 for change in run.changes)
        down = sum(change.powers < 0 for change in run.changes)
        yield (
            f"scale {in_words(scales[0])} → {in_words(scales[-1])}, between {in_words(min(scales))} and "
            f"{in_words(max(scales))}; it rises {counted(up, 'time')} and falls {counted(down, 'time')}"
        )
    if run.steered:
        yield f"{len(skips(run)):,} of {counted(len(run.rows), 'row')} show{'s' * (len(run.rows) == 1)} a skipped step"
    elif "norm" in run.has:
        norms = run.known("norm")
        bad = sum(not math.isfinite(norm) for _, norm in norms)
        yield f"the norm is not finite in {bad} of {counted(len(norms), 'row')}"


def _unknown(run: Run) -> Iterator[str]:
    if len(run.rows) < _FEWEST:
        yield f"the run has {counted(len(run.rows), 'row')}: too few for most faults"
    if not run.dense:
        yield (
            f"only about every {run.gap:,.0f}th step was logged: skips between are unseen, and where something "
            "began is known to that many steps"
        )
    yield from (text for kind, text in _HIDDEN.items() if kind not in run.has)
    scales = [value for _, value in run.known("scale")]
    steps = run.rows[-1].step - run.rows[0].step
    if len(scales) > 1 and len(set(scales)) == 1:
        if scales[0] == 1:
            yield "the scale is 1 throughout: right for BF16 and FP32, wrong for FP16; which it was is not said"
        elif steps <= _INTERVAL:
            yield (
                f"in {counted(round(steps), 'step')} the scale need not have grown yet: that takes {_INTERVAL:,} good "
                "steps"
            )
        elif steps < 2 * _INTERVAL:
            yield (
                f"in {steps:,.0f} steps the scale has not grown, though GradScaler doubles it after {_INTERVAL:,} good "
                "steps by default: whether its growth_interval is longer or the scale is fixed is not said"
            )
        if "norm" in run.has:
            yield "the scale never changed, so a norm that was taken of scaled gradients cannot be told from a true one"
    if "skipped" not in run.has and "scale" in run.has:
        yield "no column marks skipped steps: they were told by norms that are not finite, or by the fall of the scale"
    elif (
        "norm" in run.has
        and not run.steered
        and any(not math.isfinite(norm) for _, norm in run.known("norm"))
    ):
        yield "whether the steps with a norm that is not finite were skipped (a GradScaler does that) or taken"
    yield from _empty_losses(run)
    rise = undecided_jump(run)
    if rise:
        yield rise


def _empty_losses(run: Run) -> Iterator[str]:
    """Say that the loss is empty from some row on, and was in each row before: a loggers' way to write NaN."""
    known = [i for i, _ in run.known("loss")]
    missing = len(run.rows) - len(known)
    if len(known) >= _FEWEST and missing >= _FEWEST and known[-1] == len(known) - 1:
        yield (
            f"the loss is empty from {run.at(len(known))} on, in {counted(missing, 'row')}: pandas and JSON write NaN "
            "so, too; whether it was NaN is not said"
        )
