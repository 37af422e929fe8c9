"""What a dynamic loss scale would have done in a run whose gradients are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amp_lab.scaling.history import History
from amp_lab.scaling.rule import ScaleRule, next_scale, said, sinks, start

# FP16's largest number is 65504 and the next would be 65536. From the middle of the two on, rounding gives infinity.
ROUNDS_TO_INFINITY = 65520.0


def simulate(
    peaks: Iterable[float],
    *,
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    min_scale: float | None = None,
) -> History:
    """Return the history that a `DynamicLossScaler` would have with these gradients.

    A step overflows if the scale times its peak rounds to infinity in FP16. So this is a model of a run: it knows the
    gradients of the parameters, not the larger ones that may stand between them and the loss; and in a real run a
    skipped step leaves the weights alone, so that other gradients follow.

    Args:
        peaks: the largest |gradient| of each step, unscaled, 0 or more. Infinity and NaN overflow at any scale.
        init_scale, growth_factor, backoff_factor, growth_interval, min_scale: as in `DynamicLossScaler`.

    Returns:
        one entry per step. With `min_scale` the last entry is the step at which a real run would have stopped.

    Raises:
        TypeError, ValueError: if a setting is outside its range, or a peak is no number or negative.
    """
    rule = ScaleRule(growth_factor, backoff_factor, growth_interval, min_scale)
    state = start(init_scale, rule)
    history = History()
    for step, given in enumerate(_one_by_one(peaks)):
        peak = _peak(step, given)
        # Written as "not below", so that NaN counts as an overflow.
        overflowed = not state.scale * peak < ROUNDS_TO_INFINITY
        history.add(state.scale, overflowed)
        if overflowed and sinks(state.scale, rule):
            history.stopped = True
            break
        state = next_scale(state, overflowed, rule)
    return history


def _one_by_one(peaks: Any) -> Iterable[object]:
    if isinstance(peaks, str | bytes | Mapping) or getattr(peaks, "ndim", 1) != 1:
        raise TypeError(f"peaks={said(peaks)}: must be a list or a 1-D tensor, with one number for each step")
    each: Iterable[object] = peaks
    return each


def _peak(step: int, given: Any) -> float:
    try:
        if isinstance(given, str | bytes | bool) or getattr(given, "ndim", 0) != 0:
            raise TypeError
        peak = float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last of a tensor without data
        raise TypeError(
            f"peaks[{step}] is {said(given)}: must be one number, the largest |gradient| of a step"
        ) from error
    if peak < 0:
        raise ValueError(f"peaks[{step}] is {peak!r}: a peak is the largest |gradient| of a step, 0 or more")
    return peak
