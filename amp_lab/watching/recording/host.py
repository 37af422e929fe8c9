"""The recorder's side of closer looks (`recording/looks/`): it tells them what happens, and answers what they ask."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from amp_lab.autocast.records import Source
from amp_lab.watching.recording import scalers
from amp_lab.watching.recording.events import Event, Gradients, ZeroGrad

if TYPE_CHECKING:
    from amp_lab.watching.recording.looks import Looks
    from amp_lab.watching.recording.recorder import Recorder

_FILLED: Final = frozenset(Event.__dataclass_fields__)


class CloserLooks:
    """The looks of one recorder, while it is on. What fails in one of them does not reach the loop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looks: Looks | None = None
        self._main = 0

    def start(self) -> None:
        from amp_lab.watching.recording.looks import Looks

        self._main = threading.get_ident()
        self._looks = self._recorder.quietly("looks", Looks, Host(self._recorder))
        self.tell("start")

    def stop(self) -> None:
        if (looks := self._looks) is not None:
            self._recorder.quietly("looks", looks.stop)
            self._looks = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let no look see what is called in here."""
        looks = self._looks
        if looks is not None:
            looks.listen(False)
        try:
            yield
        finally:
            if looks is not None:
                looks.listen(True)

    def tell(self, name: str, *args: Any) -> None:
        """Tell the looks what happens, in the main thread only. `name` is a method of `Look`."""
        looks = self._looks
        if looks is None or threading.get_ident() != self._main:
            return
        try:
            looks.tell(name, *args)
        except Exception as error:
            self._recorder.failed("looks", error)


class Host:
    """What a closer look may ask the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.models: Sequence[nn.Module] = recorder.models
        self.optimizers: Sequence[Any] = recorder.optimizers
        self.samples = recorder.samples

    @property
    def compiled(self) -> bool:
        return self._recorder.compiled

    @property
    def step(self) -> int:
        return self._recorder.steps.now

    def states(self) -> tuple[Gradients, ...]:
        return self._recorder.states.all()

    def scale(self) -> float | torch.Tensor | None:
        """Return the scale of the scaler that was used last, or was handed over; None without an enabled one."""
        recorder = self._recorder
        scaler = recorder.last_scaler or next(iter(recorder.given_scalers), None)
        return recorder.scale_of(scaler) if scaler is not None and scalers.is_enabled(scaler) else None

    def frame(self) -> FrameType | None:
        """Return the innermost frame of the user's code."""
        return self._recorder.places.frame()

    def here(self) -> Source | None:
        """Return the user's line now."""
        frame = self.frame()
        return None if frame is None else self._recorder.places.source(frame)

    def note(self, event: Event) -> None:
        """Note an event that was made without number, step, and place."""
        recorder = self._recorder
        fields = {
            name: getattr(event, name) for name in type(event).__dataclass_fields__ if name not in _FILLED
        }
        if event.where is not None:
            fields["where"] = event.where
        recorder.emit(type(event), above=2, **fields)
        if isinstance(event, ZeroGrad):
            for number in event.optimizers:
                recorder.states.set(number, Gradients.NONE if event.set_to_none else Gradients.ZERO)

    def unscaled(self, optimizer: int) -> None:
        """Its gradients were found to be divided by the scale, by hand: from now on they are UNSCALED."""
        self._recorder.states.unscale(optimizer)

    def owner(self, parameter: torch.Tensor) -> int | None:
        """Return the number of the optimizer that has a parameter."""
        return self._recorder.owners.of(parameter)
