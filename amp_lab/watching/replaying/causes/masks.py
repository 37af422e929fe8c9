"""A softmax for which a mask leaves nothing."""

from __future__ import annotations

from typing import Final

import torch

from amp_lab.watching.replaying.causes.case import Case, Verdict
from amp_lab.watching.replaying.causes.words import NO_SCALE, row_in_words
from amp_lab.watching.replaying.flow import nan_from_infinity
from amp_lab.watching.replaying.records import Traced
from amp_lab.watching.words import in_words

_SOFTMAXES: Final = frozenset("softmax log_softmax softmin logsumexp scaled_dot_product_attention".split())
_MASKING: Final = ("add", "sub", "mul", "to", "where", "rsub")
_MASK: Final = -1e4  # a number that is added to scores so that they vanish is at least so large


def mask_overflow(case: Case) -> Verdict | None:
    """A softmax over -inf only: everything that it could choose from is masked."""
    row = case.row
    if not case.forward_bad or row is None:
        return None
    softmax = _masked_softmax(case, row)
    if softmax is None:
        return None
    minus = row is not softmax
    how = f", because {row_in_words(row)} made -inf of numbers down to {_smallest(row)}" if minus else ""
    return Verdict(
        "mask-overflow",
        f"In the forward pass, {row_in_words(softmax)} gave NaN: a row of what it was given is -inf throughout{how}. "
        f"A softmax of nothing is 0/0. {NO_SCALE}",
        "Leave something unmasked in every row. Or mask nothing before the softmax in rows that are masked throughout, "
        "and put 0 in their place after it: empty = mask.all(-1, keepdim=True); probabilities = scores.masked_fill("
        "mask & ~empty, -inf).softmax(-1).masked_fill(empty, 0.0). (To replace the NaN alone may leave NaN in the "
        "gradients.)"
        + (
            " Mask with masked_fill(mask, -inf) rather than with large numbers, whose sum leaves FP16."
            if minus
            else ""
        ),
        "forward",
        softmax,
    )


def _masked_softmax(case: Case, row: Traced) -> Traced | None:
    """Return the softmax that has nothing to choose from, if the row to blame is it, or made its -inf."""
    name = row.op.name.rstrip("_")
    if name in (*_SOFTMAXES, "sub") and nan_from_infinity(row):  # what went in was infinite from the start
        return row if not any(each.positive for each in row.inputs) else None
    # Some kernels give NaN for a row that a mask of True and False leaves nothing of, others 0.
    masked = any(each.dtype is torch.bool for each in row.op.inputs)
    if "attention" in name and row.makes_it and masked:
        return row if not any(each.infinite for each in row.outputs) else None
    only_minus = all(not each.positive and not each.nan for each in row.outputs)
    masking = name in _MASKING and only_minus and any(each.smallest <= _MASK for each in row.inputs)
    if not masking:
        return None
    after = (each for each in case.spoiling if each.op.number > row.op.number)
    return next((each for each in after if each.op.name in _SOFTMAXES and nan_from_infinity(each)), None)


def _smallest(row: Traced) -> str:
    return in_words(min((each.smallest for each in row.inputs), default=0.0))
