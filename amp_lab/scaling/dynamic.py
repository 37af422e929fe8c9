"""A loss scale that finds its size by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from amp_lab.scaling.rule import ScaleRule, ScaleState, said, shown, start
from amp_lab.scaling.scaler import LossScaler


class DynamicLossScaler(LossScaler):
    """Scales the loss as much as FP16 allows: `torch.amp.GradScaler`, bit for bit, and it says what it does.

    A step with an infinite or NaN gradient is skipped, and `update()` multiplies the scale by `backoff_factor`; after
    `growth_interval` clean steps in a row it multiplies it by `growth_factor`.

    Beyond PyTorch: `last` says what the last step did and whose gradients overflowed, `history` is there to plot, and
    with `min_scale` a run stops, with its cause, instead of skipping every step until the scale is 0. Two mistakes that
    PyTorch lets pass are errors in `step()`: gradients of a loss that was never scaled, and gradients of a scaled loss
    that `backward()` has added to unscaled ones, or left in their place.

    A step waits for the device once. With a fused optimizer it does not wait, unless `min_scale` is given or somebody
    asks; the history is fetched once in 1,000 steps.

    Args:
        init_scale: the first scale, above 0. There are no `device` and no `enabled` as in GradScaler: leave them out.
        growth_factor: above 1.
        backoff_factor: between 0 and 1.
        growth_interval: number of steps, 1 or more.
        min_scale: an overflow that asks for less raises `LossScaleTooSmall` in `update()`. None: as PyTorch, the scale
            may sink to 0, and steps with so small a scale fill weights with infinity or NaN. A usual choice
            is 1.

    Raises:
        TypeError, ValueError: if one of them is something else.

        >>> scaler = DynamicLossScaler(growth_interval=100)
        >>> scaler.get_scale()
        65536.0
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        min_scale: float | None = None,
    ) -> None:
        if isinstance(init_scale, str | torch.device):
            raise TypeError(
                f"DynamicLossScaler({said(init_scale)}): the first argument must be the first scale, a number. "
                "The device is found by itself: leave out the device and the enabled of a GradScaler"
            )
        rule = _dynamic(ScaleRule(growth_factor, backoff_factor, growth_interval, min_scale))
        super().__init__(start(init_scale, rule, "init_scale"), rule)

    def set_growth_factor(self, new_factor: float) -> None:
        """Grow by another factor from now on, above 1."""
        self._scale.rule = _dynamic(replace(self._scale.rule, growth_factor=new_factor))

    def set_backoff_factor(self, new_factor: float) -> None:
        """Back off by another factor from now on, below 1."""
        self._scale.rule = _dynamic(replace(self._scale.rule, backoff_factor=new_factor))

    def set_growth_interval(self, new_interval: int) -> None:
        """Grow after another number of clean steps from now on.

        Below the number of clean steps that are already counted, it stops growth until the next overflow: PyTorch
        compares the two with `==`, and so does `next_scale`.
        """
        self._scale.rule = replace(self._scale.rule, growth_interval=new_interval)

    def _read(self, state_dict: dict[str, Any]) -> tuple[ScaleState, ScaleRule]:
        state, rule = super()._read(state_dict)
        return state, _dynamic(rule)

    def __repr__(self) -> str:
        state, rule = self._scale.state, self._scale.rule
        steps = f"{state.clean_steps:,} of {rule.growth_interval:,} clean steps"
        return f"DynamicLossScaler: scale {shown(state.scale)}, {steps}"


def _dynamic(rule: ScaleRule) -> ScaleRule:
    """Return a rule whose scale can both grow and back off, as every rule of PyTorch's scaler at its start."""
    if rule.growth_factor == 1 or rule.backoff_factor == 1:
        raise ValueError(
            f"growth_factor={rule.growth_factor!r}, backoff_factor={rule.backoff_factor!r}: a factor of 1 changes "
            "nothing. For a scale that stays, use a StaticLossScaler; for one that never grows, a large growth_interval"
        )
    return rule
