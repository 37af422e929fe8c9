"""Follow a model that enters regions of its own, meant for CUDA, while it runs on a CPU.

`torch.autocast("cuda", enabled=False)` inside a model makes an island of FP32 on a GPU. On CPU tensors it does
nothing, and on a machine without CUDA PyTorch even turns it off. Here such a region counts for the CPU, too, while
the emulation of CUDA's casts is on; and the other way round, so that code that asks about CUDA's autocast
(`torch.is_autocast_enabled("cuda")`, `torch.amp.custom_fwd(device_type="cuda")`) is told the truth.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.amp.autocast_mode import autocast

_TWIN = {"cpu": "cuda", "cuda": "cpu"}


@contextlib.contextmanager
def regions_followed(changed: Callable[[], None], notes: list[str] | None) -> Iterator[None]:
    """Call `changed` after each change of autocast's regions in this thread, for a while.

    If `notes` is a list, regions for "cuda" and for "cpu" each count for both; it grows sentences about what could
    not be followed for sure.
    """
    follower = _Follower(changed, notes)
    kept = {name: getattr(autocast, name) for name in ("__init__", "__enter__", "__exit__")}
    cast = autocast_mode._cast  # how torch.amp.custom_fwd casts its inputs
    states = {device: _state(device) for device in _TWIN}
    try:
        for name, method in follower.methods(kept).items():
            setattr(autocast, name, method)
        if notes is not None:
            torch.set_autocast_enabled("cuda", False)
            autocast_mode._cast = follower.cast_in_place_of(cast)
        yield
    finally:
        autocast_mode._cast = cast
        for name, method in kept.items():
            setattr(autocast, name, method)
        for device, state in states.items():
            _set(device, *state)


class _Follower:
    def __init__(self, changed: Callable[[], None], notes: list[str] | None):
        self._changed = changed
        self._notes = notes
        self._thread = threading.get_ident()
        self._left: list[tuple[bool, torch.dtype]] = []  # of the twin device, to go back to

    def methods(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return what takes the place of autocast's methods. Each calls the one it replaces."""

        def init(region: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
            if device_type == "cuda" and self._twins():
                dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
                _init_for_cpu(kept["__init__"], region, dtype, *args, **kwargs)
            else:
                kept["__init__"](region, device_type, dtype, *args, **kwargs)

        def enter(region: Any) -> Any:
            has_twin = self._twins() and region.device in _TWIN
            if has_twin:
                self._doubt(region)
                self._left.append(_state(_TWIN[region.device]))
            entered = kept["__enter__"](region)
            if has_twin:
                _set(_TWIN[region.device], *_state(region.device))
            self._note()
            return entered

        def leave(region: Any, *error: Any) -> Any:
            left = kept["__exit__"](region, *error)
            if self._twins() and region.device in _TWIN:
                _set(_TWIN[region.device], *self._left.pop())
            self._note()
            return left

        return {"__init__": init, "__enter__": enter, "__exit__": leave}

    def cast_in_place_of(self, kept: Callable[..., Any]) -> Callable[..., Any]:
        """Return what casts inputs: those on the CPU where those on a GPU are meant."""

        def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
            on_cpu = device_type == "cuda" and self._twins()
            return kept(value, "cpu" if on_cpu else device_type, dtype)

        return cast

    def _is_mine(self) -> bool:
        return threading.get_ident() == self._thread

    def _twins(self) -> bool:
        return self._notes is not None and self._is_mine()

    def _note(self) -> None:
        if self._is_mine():
            self._changed()

    def _doubt(self, region: Any) -> None:
        """Note a region that PyTorch may have turned off when it was made, because there is no CUDA here."""
        # What is made during the run is made for "cpu".
        if region.device == "cuda" and not region._enabled and not torch.cuda.is_available():
            note = (
                'the model has a region torch.autocast("cuda") that was made before (a decorator, say); PyTorch turns '
                "those off on a machine without CUDA, so it counts as off here"
            )
            if self._notes is not None and note not in self._notes:
                self._notes.append(note)


def _init_for_cpu(init: Any, region: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> None:
    """Make a region for the CPU with any dtype: CUDA's autocast takes FP32, too."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "In CPU autocast, but the target dtype is not supported")
        init(region, "cpu", torch.bfloat16, *args, **kwargs)
    region.fast_dtype = dtype


def _state(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _set(device: str, enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
