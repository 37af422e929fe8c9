"""How a loss scaler says that it was called at the wrong time, or that no scale can help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from amp_lab.scaling.report import Search
from amp_lab.scaling.rule import ScaleRule, after_backoff, shown

RIGHT_ORDER = (
    "In each iteration: scaler.scale(loss).backward(), then scaler.unscale_(optimizer) if you look at its gradients or "
    "clip them, then scaler.step(optimizer), and once for all optimizers scaler.update()"
)
WAY_OUT = "If an iteration was broken off, call scaler.update() and begin again with scale()"


class CallOrderError(RuntimeError):
    """A method of a scaler was called at the wrong time."""


def wrong_time(call: str, why: str, way_out: bool = False) -> CallOrderError:
    """Return the error of a call. `way_out`: whether calls of an iteration that was broken off may be the cause."""
    return CallOrderError(f"{call}: {why}. {RIGHT_ORDER}.{f' {WAY_OUT}.' if way_out else ''}")


class LossScaleTooSmall(RuntimeError):
    """Overflow after overflow has brought the scale down to `min_scale`, and it happened again.

    A scale that is too large is cured by a smaller one, after a few steps. So the cause is elsewhere: NaN or infinity
    in the data, the weights or the forward pass, gradients that were never cleared after an overflow, or a function
    whose derivative is not finite there.
    """


def too_small(scale: float, rule: ScaleRule, skips: Collection[Sequence[Search]]) -> LossScaleTooSmall:
    """Return the error of an overflow at this scale, the last of these skips."""
    return LossScaleTooSmall(
        f"update: an overflow at loss scale {shown(scale)} asks for {shown(after_backoff(scale, rule))}, below "
        f"min_scale={shown(rule.min_scale or 0.0)}. {_who(skips)}. A smaller scale is not likely to "
        "help. Look for NaN or infinity in the inputs, the loss and the weights, and see that zero_grad() is "
        "called after skipped steps, too"
    )


def _who(skips: Collection[Sequence[Search]]) -> str:
    """Say which parameters overflowed how often in the skipped steps."""
    times = Counter(
        name
        for searches in skips
        for name in dict.fromkeys(one.name for some in searches for one in some.overflowed)
    )
    many = f"the last {len(skips):,} steps, all skipped" if len(skips) > 1 else "the last step"
    if not times:
        return f"It is not known whose gradients were infinite or NaN in {many}"
    listed = ", ".join(
        f"{name} ({count:,} time{'s' if count > 1 else ''})" for name, count in times.most_common(5)
    )
    more = f" and {len(times) - 5:,} more" if len(times) > 5 else ""
    return f"In {many}, infinity or NaN was in the gradients of {listed}{more}"
