"""Autocast regions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from amp_lab.watching.recording.events import CacheCleared, RegionEntered, RegionLeft
from amp_lab.watching.recording.recorder import Noting, Recorder
from amp_lab.watching.recording.threads import Region


def install(recorder: Recorder) -> None:
    regions = Regions()
    autocast = torch.amp.autocast_mode.autocast
    recorder.put_around(autocast, "__init__", regions.made)
    recorder.around(autocast, "__enter__", "enter", regions.enter)
    recorder.around(autocast, "__exit__", "leave", regions.leave)
    recorder.put_around(torch, "clear_autocast_cache", functools.partial(clear, recorder))


class Regions:
    """Notes regions. What they were asked to be is kept for as long as they live."""

    def __init__(self) -> None:
        # By id: a class of the user's own may not be hashable.
        self._asked: dict[int, tuple[weakref.ref[Any], bool]] = {}

    def made(self, call: Callable[..., None], autocast: Any, *args: Any, **kwargs: Any) -> None:
        call(autocast, *args, **kwargs)
        asked, key = kwargs.get("enabled", args[2] if len(args) > 2 else True), id(autocast)
        try:
            gone = weakref.ref(autocast, lambda _: self._asked.pop(key, None))
            self._asked[key] = gone, bool(asked)
        except Exception:  # what it was asked is unknown then
            return

    def _was_asked(self, autocast: Any) -> bool | None:
        found = self._asked.get(id(autocast))
        return found[1] if found is not None and found[0]() is autocast else None

    def enter(self, recorder: Recorder, autocast: Any) -> Noting:
        return lambda result, error: None if error is not None else self._entered(recorder, autocast)

    def _entered(self, recorder: Recorder, autocast: Any) -> None:
        number = recorder.next_region()
        enabled, dtype = bool(autocast._enabled), autocast.fast_dtype
        recorder.emit(
            RegionEntered,
            region=number,
            device_type=autocast.device,
            dtype=dtype,
            enabled=enabled,
            cache_enabled=bool(autocast._cache_enabled),
            grad=torch.is_grad_enabled(),
            asked=self._was_asked(autocast),
            again=any(region.context == id(autocast) for region in recorder.here.regions),
        )
        here = recorder.here
        here.regions.append(Region(id(autocast), number))
        for passing in here.passing:
            passing.inside = dtype if enabled else passing.inside

    def leave(self, recorder: Recorder, autocast: Any, kind: Any = None, *_: Any) -> Noting:
        here = recorder.here
        open_here = [region for region in here.regions if region.context == id(autocast)]
        if not open_here:  # it was entered before the watch began
            return None

        def after(result: Any, error: BaseException | None) -> None:
            here.regions.remove(open_here[-1])
            recorder.emit(RegionLeft, region=open_here[-1].number, raised=kind is not None)

        return after


def clear(recorder: Recorder, call: Callable[..., Any], *args: Any) -> Any:
    result = call(*args)
    if recorder.listening and "leave" not in recorder.here.inside:  # PyTorch does it there itself
        recorder.emit(CacheCleared)
    return result
