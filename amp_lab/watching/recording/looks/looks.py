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
# With the first of these that is seen of a step, all are told of the step before.
_BEGIN: Final = frozenset({"forward", "before_backward", "before_use"})


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

    def stop(self) -> None:
        self.tell("stop")
        self._bench.listening = False

    def listen(self, on: bool) -> None:
        """Whether what is called from now on is the loop's own."""
        self._bench.listening = on

    def tell(self, name: str, *args: Any) -> None:
        """Call this method of all looks that do something in it.

        Raises:
            Exception: what one of them has raised, when all have been told.
        """
        if name in _BEGIN and (step := self._bench.step) != self._step:
            self._step = step
            self.tell("begin_step", step)
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
