"""The scale falls and falls: because of the loss, of gradients that are kept, or of gradients that are too large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from amp_lab.watching.logs.faults.diverging import CAUSE, REMEDY, growth_before
from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import in_words
from amp_lab.watching.logs.runs import Change, Run

_HALVINGS: Final = 6  # fewer may be a start from a scale that is merely too large, or one bad batch
_FROM_START: Final = 20  # halvings that a start may need: from 2^16 to 2^-4
_PAUSE: Final = 3  # rows without a fall
_TINY: Final = 2.0**-14
_COVERS: Final = frozenset(
    {
        "skips-too-many",
        "loss-not-finite",
        "scale-zero",
        "scheduler-on-skips",
        "norm-follows-scale",
        "loss-flat",
    }
)


class Fall(NamedTuple):
    """The last stretch of a run, in which the scale never grows again."""

    first: int  # the last row with the scale before it fell
    last: int
    skipped: int  # the row of the first step that was skipped
    before: float
    after: float
    halvings: float
    steps: float


def scale_sinks(run: Run) -> Finding | None:
    """The scale falls to nothing and never comes back."""
    fall = _last_fall(run)
    if fall is None or not _sinks(run, fall):
        return None
    after = "0" if fall.after == 0 else in_words(fall.after)
    seen = (
        f"the scale falls from {in_words(fall.before)} at {run.at(fall.first)} to {after} at {run.at(fall.last)}: "
        f"{'without end' if math.isinf(fall.halvings) else f'{fall.halvings:.0f} halvings'} in "
        f"{fall.steps:,.0f} steps, and it does not grow again"
    )
    return _by_loss(run, fall, seen) or _by_gradients(run, fall, seen)


def _last_fall(run: Run) -> Fall | None:
    pairs = run.changes
    begin = len(pairs)
    while begin > 0 and pairs[begin - 1].powers <= 0 and not pairs[begin - 1].resumed:
        begin -= 1
    while begin < len(pairs) and pairs[begin].powers == 0:
        begin += 1
    stretch = pairs[_after_pause(pairs, begin) :]
    if not stretch:
        return None
    end = max(k for k, pair in enumerate(stretch) if pair.powers < 0)
    halvings = -sum(pair.powers for pair in stretch)
    steps = sum(pair.steps for pair in stretch[: end + 1])
    first = stretch[0].first
    skipped = stretch[0].second if run.scale_after else first
    return Fall(first, stretch[end].second, skipped, stretch[0].before, stretch[end].after, halvings, steps)


def _after_pause(pairs: Sequence[Change], begin: int) -> int:
    """Leave out skips of before: the fall begins after the last pause that leaves it long enough."""
    falls = [k for k in range(begin, len(pairs)) if pairs[k].powers < 0]
    for before, after in reversed(list(pairwise(falls))):
        if after - before > _PAUSE and -sum(pair.powers for pair in pairs[after:]) >= _HALVINGS:
            return after
    return begin


def _sinks(run: Run, fall: Fall) -> bool:
    """Tell a scale that sinks from one that settles: the fall lasts to the end, or ends where nothing is left."""
    known = run.known("scale")
    if fall.after == 0 or fall.after <= _TINY:
        return fall.halvings >= _HALVINGS
    steps_at_end = run.rows[known[-1][0]].step - run.rows[fall.last].step
    to_the_end = steps_at_end <= max(2 * fall.steps / max(fall.halvings, 1), run.gap)
    needed = _FROM_START if fall.first == known[0][0] else _HALVINGS
    return to_the_end and fall.halvings >= needed and fall.halvings >= fall.steps / 4


def _by_loss(run: Run, fall: Fall, seen: str) -> Finding | None:
    losses = [(i, loss) for i, loss in run.known("loss") if fall.first <= i <= fall.last]
    bad = [i for i, loss in losses if not math.isfinite(loss)]
    if len(bad) < 3 or len(bad) < len(losses) / 2:
        return None
    first = run.rows[bad[0]].step - run.rows[fall.first].step
    if first > max(2.0, run.gap):
        return None
    loss = run.rows[bad[0]].loss
    grown = growth_before(run, bad[0])
    return Finding(
        "forward-overflow",
        "probable",
        f"The loss itself is {in_words(loss)} from {run.at(bad[0])} on: the forward pass overflows, or the data has "
        f"NaN or far too large numbers from there on{f', or {CAUSE}' if grown else ''}. No loss scale can cure that.",
        (
            seen,
            f"the loss is not finite in {len(bad)} of the {len(losses)} rows of the fall, from its beginning",
            *([grown] if grown else []),
        ),
        f"Run `amp_lab.find_overflow` on the batch of {run.at(bad[0])}: it names the first operator that overflows. "
        f"Look at the range of the inputs in that batch, too.{f' {REMEDY}' if grown else ''}",
        _COVERS | {"scale-restarted"},
    )


def _by_gradients(run: Run, fall: Fall, seen: str) -> Finding:
    losses = [loss for i, loss in run.known("loss") if fall.first <= i <= fall.last]
    finite = bool(losses) and all(map(math.isfinite, losses))
    broken = [i for i, loss in run.known("loss") if i >= fall.first and not math.isfinite(loss)]
    grown = growth_before(run, broken[0] if broken else fall.first + 1)
    good = _smallest_good_scale(run, fall)
    after = [norm for i, norm in run.known("norm") if fall.first < i <= fall.last]
    infinite = bool(after) and sum(not math.isfinite(norm) for norm in after) >= 0.8 * len(after)
    if finite and good is not None and fall.after <= good / 2**4 and (infinite or not after):
        return _kept(run, fall, seen, good, infinite and run.dense)
    evidence = [seen, grown] if grown else [seen]
    if finite:
        evidence.append(f"the loss stays finite ({in_words(losses[0])} … {in_words(losses[-1])})")
    if infinite:
        evidence.append("the gradients' norm is not finite in these rows")
    where = (
        "in the backward pass, not in the forward pass" if finite else "somewhere; the log does not say where"
    )
    return Finding(
        "scale-sinks",
        "probable",
        f"Step after step is skipped from {run.at(fall.skipped)} on, and halving the scale does not help: something is "
        f"not finite {where}{f'; probably {CAUSE}' if grown else ''}.",
        tuple(evidence),
        f"{f'{REMEDY} ' if grown else ''}"
        f"Run `amp_lab.find_overflow` on the batch of {_batch(run, fall)}: it tells gradients that are too large at "
        "any scale from NaN in data or weights. See, too, that `zero_grad()` runs after skipped steps.",
        _COVERS,
    )


def _batch(run: Run, fall: Fall) -> str:
    """Name the step whose batch was the first to overflow, as far as it is known."""
    doubt = ", or of the next step if scales were logged after `update()`" if run.scale_after is None else ""
    return f"{run.at(fall.skipped)}{doubt}"


def _smallest_good_scale(run: Run, fall: Fall) -> float | None:
    """Return the smallest scale at which a step before the fall went well."""
    rows = run.rows[: fall.first]
    good = [row.scale for row in rows if row.scale and (row.norm is None or math.isfinite(row.norm))]
    return min(good) if len(good) >= 3 else None


def _kept(run: Run, fall: Fall, seen: str, good: float, sure: bool) -> Finding:
    return Finding(
        "stale-gradients",
        "probable" if sure else "possible",
        f"After the skipped step at {run.at(fall.skipped)} no step is taken any more, although the loss stays finite: "
        "either `zero_grad()` is left out when a step is skipped, so that the infinite gradients stay and each new "
        "one is added to them (the usual case), or the backward pass makes such gradients at any scale from there on.",
        (
            seen,
            f"steps went well at the scale {in_words(good)} before; now they are skipped at "
            f"{in_words(fall.after)}, where gradients are smaller",
            "the loss stays finite",
        ),
        "Call `optimizer.zero_grad()` in every iteration, whether the step was skipped or not. If it is called: run "
        f"`amp_lab.find_overflow` on the batch of {_batch(run, fall)}.",
        _COVERS,
    )
