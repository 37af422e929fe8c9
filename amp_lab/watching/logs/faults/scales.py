"""A scale that does not move, moves too much, or begins anew."""

from __future__ import annotations

import math
from typing import Final

from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import counted, in_words
from amp_lab.watching.logs.runs import Change, Run, skips

_INTERVAL: Final = 2000  # GradScaler's growth_interval
_CALM: Final = 3  # rows at one scale before a jump
_STUCK: Final = 4  # skips at one scale: DeepSpeed and Megatron wait for two before they halve it


def scale_stuck(run: Run) -> Finding | None:
    """Steps overflow at the same scale: nothing updates it."""
    known = dict(run.known("scale"))
    # The half of 0 is 0: no update shows there.
    seen = [i for i in skips(run) if 0 < known.get(i, 0) < math.inf]
    longest: list[int] = []
    stretch: list[int] = []
    rows = list(known)
    position = {row: k for k, row in enumerate(rows)}
    for i in seen:
        follows = (
            stretch and known[stretch[-1]] == known[i] and _same_between(run, rows, position, stretch[-1], i)
        )
        stretch = [*stretch, i] if follows else [i]
        longest = max(longest, stretch, key=len)
    if len(longest) < _STUCK or (not run.dense and len(set(known.values())) > 1):
        return None  # between rows that lie apart, a scale can fall and grow back
    scale = known[longest[0]]
    everywhere = len(set(known.values())) == 1
    return Finding(
        "scale-stuck",
        "probable",
        f"{len(longest)} steps were skipped at the same scale, {in_words(scale)}, and it was not lowered: "
        "it is fixed (`update(new_scale)`, a static scale), a lower bound holds it there, or a scaler written "
        "by hand is not updated on skipped steps. GradScaler would have halved it.",
        (
            f"skipped from {run.at(longest[0])} to {run.at(longest[-1])}, and no row between them shows another scale",
            "the scale is the same in the whole log"
            if everywhere
            else f"the scale is {in_words(scale)} there",
        ),
        "Call `scaler.update()` without an argument once after each `scaler.step(optimizer)`, skipped or not; with "
        "another scaler, look for a static scale and for the lower bound.",
        frozenset({"skips-too-many", "scale-constant", "scale-sinks", "loss-flat", "scheduler-on-skips"}),
    )


def _same_between(run: Run, rows: list[int], position: dict[int, int], i: int, j: int) -> bool:
    scales = {run.rows[k].scale for k in rows[position[i] : position[j] + 1]}
    return len(scales) == 1


def scale_constant(run: Run) -> Finding | None:
    """The scale never grows, though no step was skipped for long."""
    pairs = run.changes
    if not pairs or skips(run):
        return None
    scale = pairs[0].before
    steps = sum(pair.steps for pair in pairs)
    if scale == 1 or any(pair.powers for pair in pairs) or steps < 2 * _INTERVAL + run.gap:
        return None
    return Finding(
        "scale-constant",
        "possible",
        f"The scale stays at {in_words(scale)} for {steps:,.0f} steps without growing. GradScaler doubles it every "
        f"{_INTERVAL:,} steps by default: the interval is longer here, or the scale is fixed or bounded. "
        "If it is low, small gradients may be lost.",
        (
            f"from {run.at(pairs[0].first)} to {run.at(pairs[-1].second)} no row shows another scale or a skipped step",
        ),
        "See what growth_interval the scaler has, and that `scaler.update()` is called without an argument.",
    )


def scale_restarted(run: Run) -> Finding | None:
    """The scale jumps back to where it began: the scaler was not restored, or is made anew."""
    jumps = _jumps(run)
    if not jumps:
        return None
    first = jumps[0]
    again = len(jumps) > 1 and len({jump.after for jump in jumps}) == 1
    how = (
        f"{len(jumps)} times: it is made anew, with each epoch perhaps"
        if again
        else "the run was resumed there without the scaler's state, or the scaler was made anew"
    )
    return Finding(
        "scale-restarted",
        "probable" if first.steps <= 1 or first.resumed else "possible",
        f"The scale jumps from {in_words(first.before)} to {in_words(first.after)} at {run.at(first.second)}, "
        f"which usual growth does not explain; {how}.",
        tuple(
            f"{in_words(jump.before)} → {in_words(jump.after)} within {counted(round(jump.steps), 'step')}, to "
            f"{run.at(jump.second)}"
            for jump in jumps[:4]
        ),
        "Make the scaler once, before the loop; save `scaler.state_dict()` in each checkpoint and load it on resume.",
        frozenset({"scale-grows"}),
    )


def undecided_jump(run: Run) -> str | None:
    """Say which rise between rows that lie apart may be a new scaler's start or fast growth; None: there is none."""
    if _jumps(run):
        return None
    starts = _starts(run)
    for pair in run.changes:
        if pair.steps > 1 and 2 <= pair.powers < math.inf and pair.after in starts:
            return (
                f"the scale rises from {in_words(pair.before)} to {in_words(pair.after)} within {pair.steps:,.0f} "
                f"steps, to {run.at(pair.second)}: a scaler made anew or growth every "
                f"{counted(math.ceil(pair.steps / pair.powers), 'step')}; a log of each step would tell"
            )
    return None


def _jumps(run: Run) -> list[Change]:
    pairs = run.changes
    jumps = [pair for k, pair in enumerate(pairs) if _is_jump(run, k)]
    factors = {(jump.powers, jump.resumed) for jump in jumps}
    if len(factors) == 1 < len({jump.after for jump in jumps}):
        return []  # from several scales by the same factor: a growth_factor above 2
    return jumps


def _is_jump(run: Run, k: int) -> bool:
    """Whether a rise is more than growth, which at most doubles the scale in a step.

    Several steps may hold several doublings. Then only a scaler that was calm before says that they did not: it
    stayed the same for some rows, and in most of the run.
    """
    pairs = run.changes
    pair = pairs[k]
    if not 2 <= pair.powers < math.inf:
        return False
    if pair.steps <= 1:
        return True
    moved = sum(each.powers != 0 for each in pairs)
    calm = k >= _CALM and not any(each.powers for each in pairs[k - _CALM : k])
    return pair.after in _starts(run) and (pair.resumed or (calm and moved <= len(pairs) / 4))


def _starts(run: Run) -> set[float]:
    """Return the scales with which a scaler of this run may begin."""
    return {run.changes[0].before, 2.0**16} if run.changes else set()


def scale_grows(run: Run) -> Finding | None:
    """The scale grows in nearly every step: so every few steps overflow."""
    pairs = [pair for pair in run.changes if pair.steps <= 1 and not pair.resumed]
    up = [pair for pair in pairs if pair.powers > 0]
    if len(up) < 6 or len(up) < 0.3 * len(pairs):
        return None
    skipped = skips(run)
    return Finding(
        "scale-grows",
        "probable",
        f"The scale grows in {len(up)} of {len(pairs)} steps, and so overflows again and again: the growth interval is "
        "1 or little more (2,000 is usual), or `update()` is called several times a step.",
        (
            f"first from {in_words(up[0].before)} to {in_words(up[0].after)} at {run.at(up[0].second)}, then again at "
            f"{', '.join(run.at(pair.second) for pair in up[1:4])}",
            f"{len(skipped)} of {len(run.rows)} rows are skipped steps",
        ),
        "Give GradScaler a growth_interval of some hundred steps or more, and call `update()` once a step.",
        frozenset({"skips-too-many", "norm-follows-scale"}),
    )


def scale_zero(run: Run) -> Finding | None:
    """The scale is 0 or no number: unscaling divides by it."""
    bad = [i for i, scale in run.known("scale") if scale <= 0 or not math.isfinite(scale)]
    if not bad:
        return None
    scale = run.rows[bad[0]].scale
    broken = [i for i, loss in run.known("loss") if i >= bad[0] and math.isnan(loss)]
    lost = f"; the loss is NaN from {run.at(broken[0])} on: the weights are lost" if broken else ""
    return Finding(
        "scale-zero",
        "probable",
        f"The scale is {in_words(scale)} at {run.at(bad[0])}. Gradients times 0 are 0, and unscaling makes NaN of "
        f"them, which the step then writes into the weights{lost}.",
        (f"{len(bad)} rows have a scale that is 0, negative or not finite",),
        "Begin again from a checkpoint before that step, and find what made the scale sink: "
        "`amp_lab.find_overflow` on a batch from there; `amp_lab.watch(..., min_scale=2**-24)` stops earlier.",
    )
