"""All closer looks at a run, as the recorder calls them."""

from __future__ import annotations

from collections.abc import Callable

from amp_lab.watching.recording.looks.anomaly import Anomaly
from amp_lab.watching.recording.looks.data import Data
from amp_lab.watching.recording.looks.gradients import SampledGradients
from amp_lab.watching.recording.looks.look import Bench, Host, Look
from amp_lab.watching.recording.looks.operators import Operators
from amp_lab.watching.recording.looks.variables import Variables


class Looks:
    """Hands on what happens to each look. A look in which something fails is stopped, and the recorder hears of it."""

    def __init__(self, host: Host):
        self._bench = Bench(host)
        self._looks: list[Look] = [
            look(self._bench) for look in (Operators, SampledGradients, Variables, Data, Anomaly)
        ]
        self._step = 0

    def start(self) -> None:
        self._tell(lambda look: look.start())

    def stop(self) -> None:
        self._tell(lambda look: look.stop())
        self._bench.listening = False

    def forward(self) -> None:
        self._turn()
        self._tell(lambda look: look.forward())

    def before_backward(self) -> None:
        self._turn()
        self._tell(lambda look: look.before_backward())

    def after_backward(self) -> None:
        self._tell(lambda look: look.after_backward())

    def before_unscale(self, optimizer: int, by_step: bool) -> None:
        if not by_step:  # then it was told of before_step
            self._turn()
            self._tell(lambda look: look.before_use(optimizer))

    def before_step(self, optimizer: int) -> None:
        self._turn()
        self._tell(lambda look: look.before_use(optimizer))

    def after_step(self, optimizer: int) -> None:
        self._tell(lambda look: look.after_step(optimizer))

    def step_ended(self) -> None:
        skipped = self._bench.skipped
        self._tell(lambda look: look.step_ended(skipped))

    def _turn(self) -> None:
        """Tell of a new step, with the first that is seen of it."""
        if (step := self._bench.step) != self._step:
            self._step = step
            self._tell(lambda look: look.begin_step(step))

    def _tell(self, tell: Callable[[Look], None]) -> None:
        failed: Exception | None = None
        for look in tuple(self._looks):
            try:
                tell(look)
            except Exception as error:
                failed = error
                self._looks.remove(look)
                look.stop()
        if failed is not None:
            raise failed
