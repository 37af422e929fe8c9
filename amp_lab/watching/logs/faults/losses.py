"""The loss: not finite, or flat."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from amp_lab.watching.logs.faults.diverging import CAUSE, REMEDY, growth_before
from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import counted, in_words
from amp_lab.watching.logs.runs import Run, skips

_FEWEST: Final = 10  # rows, to call a loss flat
_TINY_NORM: Final = 1e-6


def loss_not_finite(run: Run) -> Finding | None:
    """The loss is NaN or infinite in some rows: before the gradients are, or after."""
    losses = run.known("loss")
    bad = [i for i, loss in losses if not math.isfinite(loss)]
    zeros = _nan_as_zero(run)
    bad = sorted({*bad, *zeros})
    if not bad:
        return None
    first = bad[0]
    since = [i for i, _ in losses if i >= first]
    lasting = len(bad) == len(since) and len(bad) > 1 and not _scaled(run, since)
    value = "NaN or infinite, written as 0," if first in zeros else in_words(run.rows[first].loss)
    evidence = [
        f"the loss is not finite in {len(bad)} of {counted(len(losses), 'row')}, first at {run.at(first)}"
    ]
    if zeros:
        evidence.append(
            f"in {counted(len(zeros), 'row')} the loss is exactly 0 and the norm is not finite: transformers' Trainer "
            "writes NaN so (logging_nan_inf_filter)"
        )
    grown = growth_before(run, first)
    said, more, todo = _lasting(run, first) if lasting else _passing(run, first)
    if grown:
        said, more, todo = CAUSE, (grown,), REMEDY
    return Finding(
        "loss-not-finite",
        "probable" if len(bad) > 1 else "possible",
        f"The loss is {value} at {run.at(first)}; probably {said}.",
        (*evidence, *(["it never becomes finite again"] if lasting else []), *more),
        todo,
    )


def _nan_as_zero(run: Run) -> set[int]:
    """Return the rows with a loss of exactly 0 and a norm that is not finite: no step has both."""
    norms = dict(run.known("norm"))
    return {i for i, loss in run.known("loss") if loss == 0 and not math.isfinite(norms.get(i, 0.0))}


def _lasting(run: Run, first: int) -> tuple[str, tuple[str, ...], str]:
    """What to say of a loss that is not finite to the end, while no scaler is seen to skip these steps."""
    find = f"run `amp_lab.find_overflow` on the batch of {run.at(first)}, with weights from before it."
    use = "With FP16 train with a GradScaler and call `scaler.step(optimizer)`, not `optimizer.step()`. Then "
    broken = [i for i, norm in run.known("norm") if i < first and not math.isfinite(norm)]
    if broken and run.rows[first].step - run.rows[broken[-1]].step <= max(2.0, run.gap):
        return (
            "the weights are not finite: a step was taken with gradients that were not finite, which a GradScaler "
            "would have skipped",
            (f"the norm was not finite before, at {run.at(broken[-1])}",),
            use + find,
        )
    known = [i for i, _ in run.known("norm") if i < first]
    if known:
        return (
            "the forward pass overflows with this batch, or its data has NaN; its step was taken, and since then the "
            "weights are not finite",
            (f"the norm was still finite at {run.at(known[-1])}",),
            f"{find[0].upper()}{find[1:]} With BF16 or FP32 no scaler skips such a step: look at the data first.",
        )
    return (
        "the weights are not finite: a step was taken with gradients that were not finite, which a GradScaler would "
        "have skipped",
        (),
        use + find,
    )


def _passing(run: Run, first: int) -> tuple[str, tuple[str, ...], str]:
    """What to say of a loss that becomes finite again, or whose steps a scaler skips."""
    find = f"run `amp_lab.find_overflow` on the batch of {run.at(first)}."
    near = [
        i for i in skips(run) if i < first and run.rows[first].step - run.rows[i].step <= max(2.0, run.gap)
    ]
    if near and not _scaled(run, [near[0], first]):
        return (
            "the gradients were not finite first: the step before may have been taken in spite of that",
            (f"the gradients were not finite before, at {run.at(near[0])}",),
            f"Check that no step is taken at {run.at(near[0])}, and {find}",
        )
    skipped = (
        f"the step before was skipped, too, at {run.at(near[0])}"
        if near
        else "no step just before it was skipped"
    )
    return (
        "the forward pass overflows with this batch, or its data has NaN",
        (skipped,) if run.steered or near else (),
        f"No loss scale cures a loss that is not finite: {find}",
    )


def _scaled(run: Run, rows: list[int]) -> bool:
    """Whether a scaler halves its scale in these rows: then it does skip their steps."""
    scales = [run.rows[i].scale for i in rows]
    known = [scale for scale in scales if scale is not None]
    return len(set(known)) > 1


def loss_flat(run: Run) -> Finding | None:
    """The loss does not move from the start, and the norms are 0 or next to it: gradients underflow."""
    losses = [loss for _, loss in run.known("loss") if math.isfinite(loss)]
    norms = [norm for _, norm in run.known("norm") if math.isfinite(norm)]
    zeros = sum(norm == 0 for norm in norms)
    learns = zeros < 0.9 * len(norms) and losses and moves(losses)  # without gradients the batches move it
    if len(norms) < _FEWEST or learns:
        return None
    tiny = sum(norm < _TINY_NORM for norm in norms)
    if tiny < 0.8 * len(norms):
        return None
    scales = {scale for _, scale in run.known("scale")}
    unscaled = not scales or max(scales) <= 16
    evidence = [f"the norm is 0 in {zeros} and below {_TINY_NORM:g} in {tiny} of {len(norms)} rows"]
    if losses:
        evidence.append(
            f"the loss goes from {in_words(losses[0])} to {in_words(losses[-1])} in {len(losses)} rows"
        )
    if scales:
        evidence.append(f"the scale is {in_words(min(scales))} to {in_words(max(scales))}")
    cause = (
        "FP16 makes such small gradients 0 unless the loss is scaled, and it is not scaled here, or hardly"
        if unscaled
        else "with a scale so large that is hardly underflow: the loss may be cut from the weights (detach, no_grad, "
        "frozen layers)"
    )
    return Finding(
        "loss-flat",
        "probable" if unscaled and zeros >= 0.5 * len(norms) else "possible",
        f"Nothing is learnt from the start: the gradients are {'0' if zeros == len(norms) else 'next to 0'}; {cause}.",
        tuple(evidence),
        "Scale the loss with `torch.amp.GradScaler`, and count what becomes 0 with `amp_lab.gradient_report(model)`.",
        frozenset({"norm-at-limit"}),
    )


def moves(losses: list[float]) -> bool:
    """Whether the last fifth lies apart from the first by more than the loss varies within them."""
    part = max(len(losses) // 5, 2)
    first, last = losses[:part], losses[-part:]
    spread = max(max(first) - min(first), max(last) - min(last), 1e-3 * abs(median(first)))
    return abs(median(last) - median(first)) > spread
