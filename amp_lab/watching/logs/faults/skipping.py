"""Steps that are skipped: too many, or not noticed by the scheduler."""

from __future__ import annotations

import itertools
import math
from typing import Final

from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import counted
from amp_lab.watching.logs.runs import Run, skips

_MOST: Final = 8  # skips beyond one for each growth, before they are called many
_SHARE: Final = 0.02
_FEWEST, _OFTEN = 4, 0.2  # for a log of every so many steps


def skips_too_many(run: Run) -> Finding | None:
    """More steps are skipped than growth of the scale explains."""
    skipped = skips(run)
    settled = _settled(skipped)
    later = [i for i in skipped if i >= settled]
    pairs = [pair for pair in run.changes if pair.first >= settled]
    growths = sum(pair.powers for pair in pairs if 0 < pair.powers < math.inf)
    rows = len(run.rows) - settled
    if not run.steered:
        return None
    if not run.dense:
        return _often(run, later, rows)
    if "scale" not in run.has or len(later) < growths + _MOST or len(later) < _SHARE * rows:
        return None
    return Finding(
        "skips-too-many",
        "possible",
        f"{len(later)} of {rows} steps are skipped after the scale has settled, and it has grown only "
        f"{counted(round(growths), 'time')}: the skips do not come from growth. Some batches overflow again and again, "
        "or gradients grow.",
        (f"skipped at {', '.join(run.at(i) for i in later[:5])}{' …' if len(later) > 5 else ''}",),
        f"Run `amp_lab.find_overflow` on the batches of such steps, the one of {run.at(later[0])} for instance, and "
        "see whether the gradients' norm grows.",
    )


def _often(run: Run, later: list[int], rows: int) -> Finding | None:
    """Judge by the share alone, where growth between the rows is not seen."""
    if len(later) < _FEWEST or len(later) < _OFTEN * rows:
        return None
    return Finding(
        "skips-too-many",
        "possible",
        f"{len(later)} of {rows} logged steps are skipped after the start: far more than one in some hundred, as is "
        "usual. The scale grows too often (a growth_interval of a few steps), or batches overflow again and again.",
        (f"skipped at {', '.join(run.at(i) for i in later[:5])}{' …' if len(later) > 5 else ''}",),
        "Log each step for a while, and see what growth_interval the scaler has.",
    )


def _settled(skipped: list[int]) -> int:
    """Return the first row after the skips with which a run begins."""
    settled = 0
    for i in skipped:
        if i > settled + 1:  # one good step between two skips of the start is usual
            break
        settled = i + 1
    return settled


def scheduler_on_skips(run: Run) -> Finding | None:
    """The learning rate moves on in skipped steps, too."""
    if not run.steered:  # no scaler to wait for
        return None
    if not run.dense or "step" not in run.has:  # rows that are several steps apart show no rate twice
        return None
    skipped = [i for i in skips(run) if 2 <= i < len(run.rows) - 3]
    moved = [i for i in skipped if _moves_about(run, i)]
    if not skipped or len(moved) < len(skipped):
        return None
    first = moved[0]
    rates = ", ".join(f"{run.rows[k].lr:.4g}" for k in range(first - 1, first + 3))
    return Finding(
        "scheduler-on-skips",
        "probable" if len(moved) > 1 and run.has & {"norm", "skipped"} else "possible",
        f"The learning rate moves on though the step is skipped, in all {len(moved)} skipped steps that can be seen: "
        "`scheduler.step()` does not wait for the scaler, so the schedule runs ahead of the weights.",
        (f"about {run.at(first)}, which was skipped, the learning rate is {rates}",),
        "Step the scheduler only if the scale did not fall: keep `scale = scaler.get_scale()` before `update()`, and "
        "`if scaler.get_scale() >= scale: scheduler.step()`.",
    )


def _moves_about(run: Run, i: int) -> bool:
    """Whether each two neighbours from two rows before a skip to three after it have different rates.

    So many, because a row may show the rate and the scale of before the step or of after it.
    """
    rates = [run.rows[k].lr for k in range(i - 2, i + 4)]
    steps = [run.rows[k].step for k in range(i - 2, i + 4)]
    dense = all(b - a <= 1 for a, b in itertools.pairwise(steps))
    return dense and None not in rates and all(a != b for a, b in itertools.pairwise(rates))
