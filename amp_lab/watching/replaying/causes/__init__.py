"""What a batch's replays and its traced run say about the cause: one function for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from amp_lab.watching.replaying.causes import backward, forward, given, hidden, masks, poles
from amp_lab.watching.replaying.causes.case import Case, Verdict

# The first that speaks is right: what was there before the batch ran, then special cases, then general ones.
_ASKED: Final[tuple[Callable[[Case], Verdict | None], ...]] = (
    given.nan_in_weights,
    given.nan_in_data,
    given.nan_in_targets,
    given.nan_behind,
    given.no_labels,
    masks.mask_overflow,
    forward.cast_overflow,
    forward.eps_lost,
    poles.pole,
    poles.written_infinity,
    forward.fp32_overflow,
    forward.forward_overflow,
    backward.scale_too_large,
    backward.hidden_behind,
    backward.nan_derivative,
    backward.gradients_leave_fp32,
    backward.backward_overflow,
    hidden.hidden_overflow,
)


def judge(case: Case) -> Verdict:
    """Return the cause; "none" where nothing overflowed, and nothing is hidden."""
    verdict = next((found for ask in _ASKED if (found := ask(case)) is not None), None)
    if verdict is None:
        return _unseen(case) if not case.finite else _none(case)
    if verdict.cause == "scale-too-large" and (worse := hidden.hidden_overflow(case)) is not None:
        # The scaler finds its scale by itself. A loss that is wrong at every scale is the news.
        others = (*worse.others, *(() if verdict.row is None else (verdict.row,)))
        return replace(worse, others=others, notes=(f"Also: {verdict.sentence}",))
    return verdict


def _none(case: Case) -> Verdict:
    largest = max((each.scale for each in case.replays), default=1.0)
    looked = ", and no infinity was hidden on the way" if case.trace is not None else ""
    gradients = any(each.parameters for each in case.replays)
    found = (
        "the loss and all gradients are finite"
        if gradients
        else "the loss is finite, and there are no gradients"
    )
    return Verdict(
        "none",
        f"Nothing overflows: {found} at a loss scale of {largest:,g}{looked}.",
        "Nothing is to be done about this batch.",
    )


def _unseen(case: Case) -> Verdict:
    """The loss was not finite, and the traced run does not show why: judged from the replays alone."""
    if case.bad_in_fp32:
        return Verdict(
            "fp32-overflow",
            "The loss is not finite, in FP32 neither, and the traced run does not show which operator begins it. "
            "No loss scale changes the forward pass.",
            "Look at the batch, at the targets and at the weights: torch.isfinite(x).all() for each.",
            "forward",
        )
    return Verdict(
        "forward-overflow",
        "The loss is not finite with autocast, and the traced run does not show which operator begins it: run again, "
        "the batch may not do the same (code that draws random numbers of its own?). No loss scale changes the "
        "forward pass.",
        "Make the batch repeatable (a seed inside the closure), and look again.",
        "forward",
    )
