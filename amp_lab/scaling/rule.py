"""The rule of dynamic loss scaling: what becomes of the scale after a step. Plain numbers; no tensors.

Both `DynamicLossScaler` and `simulate` follow it. It is the rule of `torch.amp.GradScaler` to the last bit: there the
scale is an FP32 number, so it is rounded to FP32 here whenever it changes.
"""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class ScaleState(NamedTuple):
    """The loss scale, and how many steps in a row were clean since it last changed or an overflow was seen."""

    scale: float
    clean_steps: int = 0


@dataclass(frozen=True)
class ScaleRule:
    """How a loss scale adapts. A factor of 1 leaves the scale alone, so two of them make it a static one.

    Args:
        growth_factor: what the scale is multiplied by after `growth_interval` clean steps in a row; 1 or more.
        backoff_factor: what it is multiplied by after an overflow; above 0, at most 1.
        growth_interval: number of clean steps; 1 or more.
        min_scale: what the scale never falls below; None: it may fall to 0.

    Raises:
        TypeError: if one of them is no number, or `growth_interval` no whole one.
        ValueError: if one of them is outside its range.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float | None = None

    def __post_init__(self) -> None:
        growth = positive("growth_factor", self.growth_factor)
        backoff = positive("backoff_factor", self.backoff_factor)
        interval = whole("growth_interval", self.growth_interval)
        if growth < 1:
            raise ValueError(
                f"growth_factor={growth!r}: the scale grows by it, so it must be 1 or more (2.0 is usual)"
            )
        if backoff > 1:
            raise ValueError(
                f"backoff_factor={backoff!r}: the scale shrinks by it, so it must be at most 1 (0.5 is usual)"
            )
        if interval < 1:
            raise ValueError(f"growth_interval={interval!r}: it counts steps, so it must be 1 or more")
        if self.min_scale is not None:
            # Written past the lock of the dataclass: the floor is a scale, too, so it is one that FP32 holds.
            object.__setattr__(self, "min_scale", as_scale("min_scale", self.min_scale))


def start(scale: object, rule: ScaleRule, name: str = "init_scale") -> ScaleState:
    """Return the state before the first step, with the scale rounded to FP32. `name` is for messages."""
    first = as_scale(name, scale)
    not_below(rule.min_scale, name, first, "start there or above it")
    return ScaleState(first)


def not_below(min_scale: float | None, name: str, scale: float, advice: str) -> None:
    """Raise a ValueError if a scale is below the floor. `name` and `advice` are for its message."""
    if min_scale is not None and scale < min_scale:
        raise ValueError(f"{name}={scale!r} is below min_scale={min_scale!r}: {advice}")


def loaded(saved: Mapping[str, object], min_scale: float | None) -> tuple[ScaleState, ScaleRule]:
    """Return state and rule from a scaler's state_dict, PyTorch's or ours. A scale that had sunk to 0 is one, too."""
    rule = ScaleRule(
        positive("growth_factor", saved["growth_factor"]),
        positive("backoff_factor", saved["backoff_factor"]),
        whole("growth_interval", saved["growth_interval"]),
        min_scale,
    )
    clean_steps = whole("_growth_tracker", saved["_growth_tracker"], most=2**31 - 1)
    if clean_steps < 0:
        raise ValueError(f"_growth_tracker={clean_steps}: it counts steps, so it must be 0 or more")
    scale = 0.0 if saved["scale"] == 0 else as_scale("scale", saved["scale"])
    not_below(
        min_scale, "load_state_dict: scale", scale, "load it into a scaler made with a smaller min_scale"
    )
    return ScaleState(scale, clean_steps), rule


def next_scale(state: ScaleState, overflowed: bool, rule: ScaleRule) -> ScaleState:
    """Return the state after one more step.

    An overflow multiplies the scale by `backoff_factor` and begins the count of clean steps again. The clean step that
    brings the count to `growth_interval` multiplies the scale by `growth_factor`, unless FP32 could not hold it.

    The count is compared with `==`, as PyTorch does: a `growth_interval` that is set below the count is never met, and
    the scale does not grow again before the next overflow.
    """
    scale, clean_steps = state
    if overflowed:
        return ScaleState(max(after_backoff(scale, rule), rule.min_scale or 0.0))
    if clean_steps + 1 != rule.growth_interval:
        return ScaleState(scale, clean_steps + 1)
    grown = to_fp32(scale * rule.growth_factor)
    return ScaleState(grown if math.isfinite(grown) else scale)


def after_backoff(scale: float, rule: ScaleRule) -> float:
    """Return the scale that an overflow leads to if nothing holds it: below `min_scale` it is time to stop."""
    return to_fp32(scale * rule.backoff_factor)


def sinks(scale: float, rule: ScaleRule) -> bool:
    """Return whether an overflow at this scale asks for less than `min_scale`."""
    return rule.min_scale is not None and after_backoff(scale, rule) < rule.min_scale


def to_fp32(number: float) -> float:
    """Return a number rounded to FP32, to infinity if it is too large."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return math.copysign(math.inf, number)
    return float(rounded)


def as_scale(name: str, number: object) -> float:
    """Return a number as a loss scale: above 0, and finite after rounding to FP32. `name` is for messages."""
    scale = to_fp32(positive(name, number))
    if scale == 0 or math.isinf(scale):
        raise ValueError(
            f"{name}={said(number)}: a loss scale is an FP32 number, and FP32 has none of this size"
        )
    return scale


def has_inverse(scale: float) -> bool:
    """Return whether FP32 holds 1/scale, which gradients are multiplied by."""
    return scale > 0 and math.isfinite(to_fp32(1 / scale))


def positive(name: str, number: object) -> float:
    """Return a number that is above 0 and finite. `name` is for messages."""
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        hint = ". The number in a tensor is its .item()" if hasattr(number, "item") else ""
        raise TypeError(f"{name}={said(number)}: must be a number, like 2.0{hint}")
    try:
        value = float(number)
    except OverflowError:  # a whole number of many digits
        value = math.inf
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={said(number)}: must be above 0 and finite")
    return value


def whole(name: str, number: object, most: int = 2**63 - 1) -> int:
    """Return a whole number that PyTorch's kernel can hold, too. `name` is for messages."""
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise TypeError(f"{name}={said(number)}: it counts steps, so it must be a whole number")
    value = int(number)
    if value > most:
        raise ValueError(f"{name}={said(number)}: must be at most {most:,}")
    return value


def said(value: object) -> str:
    """Return a wrong value as a message shows it: cut short if it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python does not write out whole numbers of more than 4,300 digits
        return "<a whole number of thousands of digits>"
    return text if len(text) <= 60 else f"{text[:50]}…"


def shown(scale: float) -> str:
    """Return a scale to be read by people: 65,536 and not 65536.0."""
    return f"{scale:,.10g}"
