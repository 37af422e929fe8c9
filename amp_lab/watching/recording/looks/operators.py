"""A look at single calls of PyTorch's functions: in the first steps, and after a step that was skipped.

It sees what the user's code and PyTorch's modules call from Python. What it computes stays on its device, unread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from amp_lab.watching.recording.looks import stack
from amp_lab.watching.recording.looks.averages import Averages
from amp_lab.watching.recording.looks.calls import Call
from amp_lab.watching.recording.looks.casts import Casts
from amp_lab.watching.recording.looks.gradients_used import GradientsUsed
from amp_lab.watching.recording.looks.hooks import Hooks
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.look import Bench, Look
from amp_lab.watching.recording.looks.losses import Losses
from amp_lab.watching.recording.looks.mode import CallMode
from amp_lab.watching.recording.looks.noting import Notes
from amp_lab.watching.recording.looks.overflows import Overflows
from amp_lab.watching.recording.looks.penalties import Penalties
from amp_lab.watching.recording.looks.plain_numbers import PlainNumbers
from amp_lab.watching.recording.looks.poles import Poles
from amp_lab.watching.recording.looks.probabilities import Probabilities
from amp_lab.watching.recording.looks.sums import Sums
from amp_lab.watching.recording.looks.tags import Tags

_FIRST_STEPS: Final = 3
_AFTER_SKIPS: Final = 16  # skipped steps that wake it again
_JUDGES: Final[Sequence[type[Judge]]] = (
    GradientsUsed,
    Hooks,
    Penalties,
    PlainNumbers,
    Casts,
    Probabilities,
    Overflows,
    Poles,
    Averages,
    Sums,
    Losses,
)


class Operators(Look):
    """Decides when the mode is on, and hands calls to the judges."""

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self._tags, notes = Tags(), Notes(bench)
        self._judges = [judge(bench, self._tags, notes) for judge in _JUDGES]
        self._mode, self._thread = CallMode(self), threading.get_ident()
        self._until, self._skips = _FIRST_STEPS, 0
        self._put = False
        self._error: Exception | None = None

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._mode.over, self._mode.calls = False, 0
        self._settle(True)

    def begin_step(self, step: int) -> None:
        if self._error is not None:
            raise self._error  # to the recorder, which says so; never into the user's call
        self._settle(step <= self._until)

    def step_ended(self, skipped: bool) -> None:
        if skipped and self._skips < _AFTER_SKIPS:
            self._skips += 1
            self._until = max(self._until, self.bench.step + 1)
            self._settle(True)

    def stop(self) -> None:
        self._settle(False)
        self._mode.over = True  # the last thing to do, if this is another thread
        self._tags.clear()

    def _settle(self, on: bool) -> None:
        """Put the mode on or take it off: in its own thread, and not while it hands on a call, for then it is off."""
        self._mode.awake = on and self._error is None and not self.bench.compiled
        if threading.get_ident() != self._thread or self._mode.calls:
            return
        if self._mode.awake == self._put:
            return
        if self._mode.awake != stack.is_on(self._mode):
            (stack.put_under if self._mode.awake else stack.take_out)(self._mode)
        self._put = self._mode.awake

    def begins(self, call: Call) -> None:
        self._ask(lambda judge: judge.before(call))

    def ends(self, call: Call) -> None:
        self._ask(lambda judge: judge.after(call))

    def fails(self, call: Call) -> None:
        self._ask(lambda judge: judge.raised(call))

    def _ask(self, ask: Callable[[Judge], None]) -> None:
        if self._error is not None or not self.bench.listening:
            return
        try:
            for judge in self._judges:
                ask(judge)
        except Exception as error:
            self._error, self._mode.awake = error, False
