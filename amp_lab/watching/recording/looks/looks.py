"""All closer looks at a run, as the recorder calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amp_lab.watching.recording.looks.anomaly import Anomaly
from amp_lab.watching.recording.looks.casts_of_weights import CastsOfWeights
from amp_lab.watching.recording.looks.data import Data
from amp_lab.watching.recording.looks.gradients import SampledGradients
from amp_lab.watching.recording.looks.look import Bench, Host, Look
from amp_lab.watching.recording.looks.operators import Operators
from amp_lab.watching.recording.looks.underflow import SampledUnderflow
from amp_lab.watching.recording.looks.variables import Variables

_KINDS: Final[tuple[type[Look], ...]] = (
    Operators,
    SampledGradients,
    SampledUnderflow,
    Variables,
    Data,
    Anomaly,
    CastsOfWeights,
)
_CALLS: Final = (
    "start",
    "begin_step",
    "forward",
    "before_backward",
    "after_backward",
    "before_use",
    "after_step",
    "step_ended",
    "stop",
)


class Looks:
    """Hands on what happens to each look. A look in which something fails is stopped, and the recorder hears of it."""

    def __init__(self, host: Host):
        self._bench = Bench(host)
        self._looks: list[Look] = [kind(self._bench) for kind in _KINDS]
        self._told = self._methods()
        self._step = 0

    def _methods(self) -> dict[str, tuple[Callable[..., None], ...]]:
        """Return for each call the methods of the looks that do something then."""
        return {
            name: tuple(
                getattr(look, name)
                for look in self._looks
                if getattr(type(look), name) is not getattr(Look, name)
            )
            for name in _CALLS
        }

    def start(self) -> None:
        self._tell("start")

    def stop(self) -> None:
        self._tell("stop")
        self._bench.listening = False

    def listen(self, on: bool) -> None:
        """Whether what is called from now on is the loop's own."""
        self._bench.listening = on

    def forward(self) -> None:
        self._turn()
        self._tell("forward")

    def before_backward(self) -> None:
        self._turn()
        self._tell("before_backward")

    def after_backward(self) -> None:
        self._tell("after_backward")

    def before_unscale(self, optimizer: int, by_step: bool) -> None:
        if not by_step:  # then it was told of before_step
            self._turn()
            self._tell("before_use", optimizer)

    def before_step(self, optimizer: int) -> None:
        self._turn()
        self._tell("before_use", optimizer)

    def after_step(self, optimizer: int) -> None:
        self._tell("after_step", optimizer)

    def step_ended(self) -> None:
        skipped = self._bench.skipped
        self._tell("step_ended", skipped)

    def _turn(self) -> None:
        """Tell of a new step, with the first that is seen of it."""
        if (step := self._bench.step) != self._step:
            self._step = step
            self._tell("begin_step", step)

    def _tell(self, name: str, *args: Any) -> None:
        failed: Exception | None = None
        for tell in self._told[name]:
            try:
                tell(*args)
            except Exception as error:
                failed = error
                self._leave_out(tell)
        if failed is not None:
            raise failed

    def _leave_out(self, failed: Any) -> None:
        look: Look = failed.__self__
        self._looks.remove(look)
        self._told = self._methods()
        look.stop()
