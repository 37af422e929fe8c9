"""What a scaler tells of itself, without making the host wait: PyTorch's, ours, and any other with the same methods."""

from __future__ import annotations

import functools
from typing import Any, Final, cast

import torch

from amp_lab.scaling.scaler import LossScaler
from amp_lab.watching.recording.attributes import attribute
from amp_lab.watching.recording.later import UNKNOWN, Later
from amp_lab.watching.recording.numbers import number
from amp_lab.watching.recording.run import ScalerFacts

CALLS: Final = ("scale", "unscale_", "step", "update", "get_scale", "state_dict", "load_state_dict")


def is_scaler(value: object) -> bool:
    """Return whether it is an object with the methods of a scaler."""
    return not isinstance(value, type) and all(
        callable(attribute(value, name, None)) for name in ("scale", "step", "update")
    )


def is_enabled(scaler: Any) -> bool:
    """Return whether it scales at all."""
    enabled = attribute(scaler, "_enabled", True)
    if enabled is True:
        return True
    return bool(enabled) if isinstance(enabled, bool | int) else True


class Scale:
    """The scale of one scaler. On a device it is copied once, and again when PyTorch has written to it."""

    def __init__(self) -> None:
        self._copied: tuple[int, int] | None = None
        self._value: float | torch.Tensor = UNKNOWN

    def of(self, scaler: Any) -> float | torch.Tensor:
        """Return the scale: a number if the host knows it, else a tensor that nobody writes to."""
        if not is_enabled(scaler):
            return 1.0
        if isinstance(scaler, LossScaler):
            return number(scaler._scale.snapshot())
        value = attribute(scaler, "_scale", None)
        if value is None:
            value = attribute(scaler, "_init_scale", None)
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            return self._copy(value)
        return number(_asked(scaler) if value is None else value)

    def _copy(self, value: torch.Tensor) -> float | torch.Tensor:
        version = id(value), value._version
        if self._copied != version:
            self._copied, self._value = version, number(value)
        return self._value

    def later(self, scaler: Any) -> Later[float]:
        return Later(float, self.of(scaler))


def _asked(scaler: Any) -> object:
    """Ask a scaler of a kind that is not known; it may have a method or an attribute for it."""
    for name in ("get_scale", "loss_scale", "cur_scale"):
        value = attribute(scaler, name, None)
        if value is not None:
            return value() if callable(value) else value
    return UNKNOWN


def found_inf(scaler: Any, optimizer: Any) -> float | torch.Tensor | None:
    """Return whether unscale_ has found infinities or NaNs: above 0 if so; None if it did not look, or if unknown."""
    if isinstance(scaler, LossScaler):
        state = scaler._states.get(id(optimizer))
        return None if state is None or state.overflowed is None else number(state.overflowed)
    states = attribute(scaler, "_per_optimizer_states", None)
    if not isinstance(states, dict) or id(optimizer) not in states:
        return None
    found = list(states[id(optimizer)].get("found_inf_per_device", {}).values())
    if len(found) <= 1:
        return number(found[0]) if found else None
    return number(
        functools.reduce(torch.add, [each.to(found[0].device, non_blocking=True) for each in found])
    )


def is_fused(optimizer: Any) -> bool:
    """Return whether the optimizer itself leaves its step out: the scaler calls it all the same."""
    return bool(attribute(optimizer, "_step_supports_amp_scaling", False))


def facts(scaler: Any, scale: float | None, given: bool, asked: dict[str, Any] | None) -> ScalerFacts:
    """Return what is known of a scaler.

    Args:
        scale: its scale now, if the host knows it.
        given: whether it was handed over.
        asked: the arguments it was made with, if that was seen.
    """
    return ScalerFacts(
        kind=type(scaler).__name__,
        enabled=is_enabled(scaler),
        asked_enabled=None if asked is None else bool(asked.get("enabled", True)),
        device=(asked or {}).get("device", attribute(scaler, "_device", None)),
        scale=scale,
        growth_factor=_setting(scaler, "growth_factor", 2.0),
        backoff_factor=_setting(scaler, "backoff_factor", 0.5),
        growth_interval=int(_setting(scaler, "growth_interval", 2000)),
        given=given,
    )


def _setting(scaler: Any, name: str, usual: float) -> float:
    value = attribute(scaler, f"_{name}", None)
    if value is None and isinstance(scaler, LossScaler):
        value = attribute(scaler._scale.rule, name)
    return float(cast(float, value)) if isinstance(value, int | float) else usual
