"""Numbers of tensors, taken without making the host wait for a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from amp_lab.watching.recording.later import UNKNOWN, Later

_PLAIN: Final = (torch.Tensor, nn.Parameter)


def number(value: object) -> float | torch.Tensor:
    """Return the number in a tensor of one element: at once on the CPU, else as a copy on its device.

    Returns:
        NaN for what has no number: a fake tensor, one on the meta device, one inside of vmap.
    """
    if not isinstance(value, torch.Tensor):
        return float(value) if isinstance(value, int | float) else UNKNOWN
    if type(value) not in _PLAIN:
        return UNKNOWN
    try:
        device = value.device.type
        if device == "cpu":
            found: object = value.tolist()  # no synchronisation, and no operator
            return found if type(found) is float else _first(found)
        return UNKNOWN if device == "meta" or value.numel() != 1 else value.detach().clone().reshape(())
    except Exception:  # inside of a transform of torch.func a tensor has no numbers
        return UNKNOWN


def _first(value: object) -> float:
    while isinstance(value, list):
        value = value[0] if len(value) == 1 else UNKNOWN
    return float(value) if isinstance(value, int | float) else UNKNOWN


def later(value: object) -> Later[float]:
    """Return the number of a tensor of one element, for later."""
    return Later(float, number(value))


def finite(tensors: Sequence[torch.Tensor]) -> Later[bool]:
    """Return whether all numbers are finite; True where nobody can know."""
    if len(tensors) == 1 and tensors[0].numel() == 1:
        value = number(tensors[0])
        if isinstance(value, torch.Tensor):
            return Later(math.isfinite, value)
        return Later(bool, math.isfinite(value) or not _readable(tensors[0]))
    return Later(bool, _all_finite(tensors))


def _readable(tensor: torch.Tensor) -> bool:
    """Return whether a NaN is the tensor's own, and not the sign that it has no number."""
    try:
        return type(tensor) in _PLAIN and not isinstance(tensor.tolist(), list) | (
            tensor.device.type == "meta"
        )
    except Exception:
        return False


@torch.no_grad()
def _all_finite(tensors: Sequence[torch.Tensor]) -> bool | torch.Tensor:
    try:
        found = [torch.isfinite(each.detach()).all() for each in tensors if type(each) in _PLAIN]
        found = [each for each in found if each.device.type != "meta"]
        if all(each.device.type == "cpu" for each in found):
            return all(each.tolist() for each in found)
        return torch.stack([each.to(found[-1].device, non_blocking=True) for each in found]).all()
    except Exception:
        return True


def rates(groups: object) -> tuple[float, ...]:
    """Return the learning rates of an optimizer's groups; NaN for one that lives on a GPU."""
    if not isinstance(groups, list):
        return ()
    return tuple(_rate(group.get("lr", UNKNOWN)) for group in groups)


def _rate(value: object) -> float:
    if isinstance(value, float):
        return value
    found = number(value)
    return UNKNOWN if isinstance(found, torch.Tensor) else found
