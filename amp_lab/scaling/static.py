"""A loss scale that stays what it is."""

from __future__ import annotations

from typing import Any

import torch

from amp_lab.scaling.rule import ScaleRule, ScaleState, has_inverse, start
from amp_lab.scaling.scaler import LossScaler

# Growing and backing off by 1, each step anew, is doing nothing.
NO_CHANGE = ScaleRule(growth_factor=1.0, backoff_factor=1.0, growth_interval=1)


class StaticLossScaler(LossScaler):
    """Multiplies the loss by a constant, and divides the gradients by it before the optimizer sees them.

    It has the methods of `torch.amp.GradScaler` and does what that does, except that the scale changes only by
    `update(new_scale)`. A step with an infinite or NaN gradient is skipped here, too.

    Args:
        scale: a number that FP32 holds, and whose inverse it holds, too: from 3e-39 to 3.4e38. A power of two changes
            no bit of a gradient but its exponent.

    Raises:
        TypeError, ValueError: if it is something else.

        >>> scaler = StaticLossScaler(1024.0)
        >>> scaler.get_scale()
        1024.0
    """

    def __init__(self, scale: float) -> None:
        state = start(scale, NO_CHANGE, "scale")
        _see_that_it_divides("scale", state.scale)
        super().__init__(state, NO_CHANGE)

    def set_growth_factor(self, new_factor: float) -> None:
        self._refuse("set_growth_factor")

    def set_backoff_factor(self, new_factor: float) -> None:
        self._refuse("set_backoff_factor")

    def set_growth_interval(self, new_interval: int) -> None:
        self._refuse("set_growth_interval")

    def _refuse(self, call: str) -> None:
        raise TypeError(f"{call}: the scale of a StaticLossScaler does not change; use a DynamicLossScaler")

    def _number(self, new_scale: float | torch.Tensor) -> float:
        number = super()._number(new_scale)
        _see_that_it_divides("new_scale", number)
        return number

    def _read(self, state_dict: dict[str, Any]) -> tuple[ScaleState, ScaleRule]:
        state, rule = super()._read(state_dict)
        _see_that_it_divides("load_state_dict: scale", state.scale)
        if (rule.growth_factor, rule.backoff_factor) != (1.0, 1.0):
            raise ValueError(
                "load_state_dict: this state is of a scaler that changes its scale (growth_factor "
                f"{rule.growth_factor:g}, backoff_factor {rule.backoff_factor:g}): load it into a DynamicLossScaler, "
                f"or make a StaticLossScaler({state.scale!r})"
            )
        return state, NO_CHANGE

    def __repr__(self) -> str:
        return f"StaticLossScaler({self.get_scale()!r})"


def _see_that_it_divides(name: str, scale: float) -> None:
    if not has_inverse(scale):
        raise ValueError(
            f"{name}={scale!r}: gradients are multiplied by 1/scale, and FP32 has no number of this size; "
            "3e-39 is about the least scale"
        )
