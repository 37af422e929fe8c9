"""The norm of the gradients: measured while they are scaled, or after clipping."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from statistics import median
from typing import Final

from amp_lab.watching.logs.faults.losses import moves
from amp_lab.watching.logs.finding import Finding
from amp_lab.watching.logs.numbers import in_words
from amp_lab.watching.logs.runs import Run

_FEWEST: Final = 10
_LARGE: Final = 1000.0  # norms beyond it are rare, and a scaled norm is hardly ever below it
_USUAL: Final = (1e-3, 100.0)  # the norms of gradients, mostly
_WINDOW: Final = 3  # rows on each side of a change, whose median stands for the norm there
_UNSCALE: Final = "Call `scaler.unscale_(optimizer)` before `clip_grad_norm_` and before the norm is logged."


def norm_follows_scale(run: Run) -> Finding | None:
    """The norm doubles when the scale does: it is that of scaled gradients."""
    steps = _steps(run)
    total = sum(ds * ds for ds, _, _ in steps)
    if len(steps) < 2 or total < 3:
        return None
    slope = sum(ds * dn for ds, dn, _ in steps) / total
    size = math.sqrt(total * sum(dn * dn for _, dn, _ in steps))
    fit = sum(ds * dn for ds, dn, _ in steps) / size if size else 0.0
    if not (0.6 <= slope <= 1.4 and fit >= 0.85):
        return None
    sure = len(steps) >= 3 and fit >= 0.9 and 0.75 <= slope <= 1.25
    return Finding(
        "norm-follows-scale",
        "probable" if sure else "possible",
        f"The gradients' norm moves with the loss scale: 2^{slope:.2f} times for each doubling. It was taken of scaled "
        "gradients; if they are clipped by it, all of them are clipped to almost nothing.",
        (
            f"{len(steps)} changes of the scale, correlation of the logarithms {fit:.2f}",
            *(f"scale × 2^{ds:g} and norm × {2**dn:.3g} about {run.at(i)}" for ds, dn, i in steps[:4]),
        ),
        _UNSCALE,
        frozenset({"norm-looks-scaled"}),
    )


def _steps(run: Run) -> list[tuple[float, float, int]]:
    """Return each change of the scale with that of the norm, both in powers of two, and its row.

    Stretches of one scale are compared, by the median of the norms next to the change: single batches vary.
    """
    stretches: list[tuple[float, list[float], int]] = []
    for i, row in enumerate(run.rows):
        if (
            row.scale is None
            or row.norm is None
            or not (0 < row.scale < math.inf and 0 < row.norm < math.inf)
        ):
            continue
        if stretches and stretches[-1][0] == row.scale:
            stretches[-1][1].append(math.log2(row.norm))
        else:
            stretches.append((row.scale, [math.log2(row.norm)], i))
    return [
        (math.log2(b[0] / a[0]), median(b[1][:_WINDOW]) - median(a[1][-_WINDOW:]), b[2])
        for a, b in itertools.pairwise(stretches)
    ]


def norm_looks_scaled(run: Run) -> Finding | None:
    """The loss stands still beside norms that are large, and of a usual size once divided by the scale.

    This is for a scale that does not move while there are norms, so that nothing shows whether they follow it.
    """
    losses = [loss for _, loss in run.known("loss") if math.isfinite(loss)]
    pairs = [
        (row.norm, row.scale)
        for row in run.rows
        if row.norm and row.scale and math.isfinite(row.norm) and row.scale >= _LARGE
    ]
    if min(len(losses), len(pairs)) < 2 * _FEWEST or moves(losses):
        return None
    norm, true = median(norm for norm, _ in pairs), median(norm / scale for norm, scale in pairs)
    if norm < _LARGE or not _USUAL[0] <= true <= _USUAL[1]:
        return None
    return Finding(
        "norm-looks-scaled",
        "possible",
        f"The loss stands still, and the gradients' norm is {in_words(norm)}, which is large; divided by the scale it "
        f"is {true:.3g}, which is usual. It may be the norm of scaled gradients; if they are clipped by it, they are "
        "clipped to almost nothing.",
        (
            f"the loss goes from {in_words(losses[0])} to {in_words(losses[-1])} in {len(losses)} rows",
            f"the median of {len(pairs)} norms is {in_words(norm)}",
        ),
        _UNSCALE,
    )


def norm_at_limit(run: Run) -> Finding | None:
    """The norm is the same number in nearly every row: that of clipping."""
    norms = [norm for _, norm in run.known("norm") if 0 < norm < math.inf]
    if len(norms) < _FEWEST:
        return None
    value, count = Counter(float(f"{norm:.4g}") for norm in norms).most_common(1)[0]
    if count < 0.9 * len(norms):
        return None
    return Finding(
        "norm-at-limit",
        "possible",
        f"The gradients' norm is {in_words(value)} in {count} of {len(norms)} rows: it was taken after clipping, and "
        "nearly every step is clipped. So it is when gradients are clipped while they are still scaled, or when the "
        "limit is far too low.",
        (f"{count} of {len(norms)} norms are {value:g} to four digits",),
        "Log what `clip_grad_norm_` returns (the norm before clipping), and call `scaler.unscale_(optimizer)` first.",
    )
