"""A loss that grows until numbers end: then the run diverges, with or without mixed precision."""

from __future__ import annotations

import math
from typing import Final

from amp_lab.watching.logs.numbers import in_words
from amp_lab.watching.logs.runs import Run

_GROWN: Final = 100.0  # a noisy loss varies less; one that diverges passes that in a few steps
CAUSE: Final = (
    "the run diverges (a learning rate that is too large, or data with far too large numbers); then mixed precision is "
    "not the cause"
)
REMEDY: Final = (
    "Train the same steps in FP32 (autocast and scaler with enabled=False): if the loss grows there, too, lower the "
    "learning rate, warm it up, or clip the gradients."
)


def growth_before(run: Run, index: int) -> str | None:
    """Say how far the loss had grown in the rows before `index`; None: it had not, or that is not known."""
    before = [(i, loss) for i, loss in run.known("loss") if i < index and 0 < loss < math.inf]
    if len(before) < 2:
        return None
    low, high = min(before, key=lambda each: each[1]), before[-1]
    if high[1] < _GROWN * low[1] or high[1] < 2 * before[0][1]:  # below the first loss it has not exploded
        return None
    return (
        f"the loss had grown before, from {in_words(low[1])} at {run.at(low[0])} to {in_words(high[1])} at "
        f"{run.at(high[0])}"
    )
