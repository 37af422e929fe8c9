"""Putting a TorchFunctionMode under those of the user, and taking it out again wherever it lies.

Leaving a mode takes off whichever is on top. So a mode that comes and goes between the user's lines must never be on
top of one of theirs: it goes to the bottom, as `torch.utils._device.DeviceContext` does, with the same private
functions (there are no public ones), and only that one, which insists on it, lies lower.
"""

from __future__ import annotations

from typing import Any, Final

from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

_torch: Final[Any] = overrides


def is_on(mode: TorchFunctionMode) -> bool:
    """Return whether a mode is on this thread's stack."""
    return any(each is mode for each in _torch._get_current_function_mode_stack())


def put_under(mode: TorchFunctionMode) -> None:
    """Put a mode under all others but the default device's."""
    theirs = _taken_off()
    while theirs and isinstance(theirs[0], DeviceContext):
        _torch._push_mode(theirs.pop(0))
    _put_back([mode, *theirs])


def take_out(mode: TorchFunctionMode) -> None:
    """Take a mode from the stack, wherever it is; the others stay in their order."""
    _put_back([each for each in _taken_off() if each is not mode])


def _taken_off() -> list[TorchFunctionMode]:
    """Take all modes off. Returns them, lowest first."""
    modes = _torch._get_current_function_mode_stack()
    for _ in modes:
        _torch._pop_mode()
    return list(modes)


def _put_back(modes: list[TorchFunctionMode]) -> None:
    for mode in modes:
        _torch._push_mode(mode)
