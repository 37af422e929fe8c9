"""Gradients that FP16 made zero, in the steps in which they were looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from amp_lab.watching.recording.events import Backward, Event
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.underflow.judging import Row
from amp_lab.watching.underflow.shown import cure, experiment, only_zeros, percent, scale_or_number, since
from amp_lab.watching.underflow.table import Underflow
from amp_lab.watching.words import counted, steps_in_words

# A quarter of a module's gradients. The first to be lost are the smallest, and matter least: lesson 03 loses 40 % of
# them without harm. And the estimate is rather too low: where it says a quarter, it may be half.
_MANY: Final = 0.25
_NUMBERS: Final = (
    32  # of a module: a quarter of them is `pile.FEW`, the fewest from which a share can be told
)
_SAMPLES: Final = 2  # in which the same module loses so many: one batch may be odd
_HALF: Final = 0.5  # from here on the module learns more slowly than not: no risk, a fault


@rule("gradients-underflow", Severity.RISK, title="gradients that FP16 made zero")
def gradients_underflow(run: Run) -> Iterator[Finding]:
    """In some modules FP16 rounds a good part of the gradients to zero, and these do not learn.

    Sizes below 2^-25 (2.98e-8) become 0 in a backward pass in FP16; the first layers of a deep network lose theirs
    first. A larger loss scale keeps them, as long as the largest gradients stay below 65504. Zeros that a ReLU, a mask
    or an unused word makes are not meant: they leave no numbers at the edge of FP16's range.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y) / 1e9
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    table = Underflow(run.underflow)
    losing = _losing(table.rows)
    if not losing:
        yield from _nothing_but_zeros(run, table)
        return
    worst = max(losing, key=lambda row: row.share_lost)
    modules, steps = {row.module for row in losing}, sorted({row.step for row in losing})
    events = _evidence(run, steps)
    if not events:
        return
    first = min(table.began[each] for each in modules)
    others = f", and in {counted(len(modules) - 1, 'more module')}" if len(modules) > 1 else ""
    yield Finding(
        f"FP16 made {percent(worst.share_lost)} of the gradients of `{worst.module}` zero in step {worst.step:,}, at a "
        f"loss scale of {scale_or_number(worst.scale)}{others}, {since(table, first)}.",
        events,
        {
            "modules": len(modules),
            "steps in which it was seen": steps_in_words(steps),
            "largest gradient": None if math.isnan(worst.largest) else worst.largest,
            "scale that keeps them" if table.sure else "scale to try": table.scale,
        },
        Fix(events[0], say=cure(table)),
        Severity.WRONG if worst.share_lost >= _HALF else Severity.RISK,
    )


def _nothing_but_zeros(run: Run, table: Underflow) -> Iterator[Finding]:
    """All gradients of all modules are 0 in all samples, from the first on: there are no numbers to tell by."""
    counted_in_one = sum(row.entries for row in table.at(table.steps[0])) if table.rows else 0
    if len(table.steps) < _SAMPLES or counted_in_one < _NUMBERS or not all(row.untold for row in table.rows):
        return
    events = _evidence(run, table.steps)
    if events:
        yield Finding(
            only_zeros(table),
            events,
            {
                "modules": len(table.modules),
                "steps in which it was seen": steps_in_words(table.steps),
                "scale": table.rows[-1].scale,
                "scale to try": table.scale_to_try,
            },
            Fix(events[0], say=experiment(table)),
        )


def _losing(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of modules that lose many gradients in several samples, or in the only one."""
    steps = {row.step for row in rows if not row.overflowed}
    lost: dict[str, list[Row]] = {}
    for row in rows:
        if row.share_lost >= _MANY and row.entries >= _NUMBERS:
            lost.setdefault(row.module, []).append(row)
    enough = min(_SAMPLES, len(steps))
    return [row for some in lost.values() if len(some) >= enough for row in some]


def _evidence(run: Run, steps: Sequence[int]) -> tuple[Event, ...]:
    """Return the backward passes of these steps; the first of all, where none of them was kept."""
    backwards = [each for each in run.of(Backward) if not each.raised]
    seen = [each for each in backwards if each.step in set(steps)]
    return tuple(seen or backwards[:1])
