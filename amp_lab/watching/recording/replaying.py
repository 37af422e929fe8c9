"""Run a batch again that has overflowed, while it is at hand, and note where that began: `watch(..., replay=f)`."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from amp_lab.autocast.recording.settings_kept import random_states_kept
from amp_lab.autocast.recording.training_steps import TrainingStepError
from amp_lab.autocast.records import Source
from amp_lab.scaling.scaler import LossScaler
from amp_lab.watching.recording import scalers
from amp_lab.watching.recording.events import Replayed
from amp_lab.watching.recording.finite import all_finite
from amp_lab.watching.recording.random_numbers import RandomNumbers, generators_of, gpus
from amp_lab.watching.recording.unseen import unseen

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder
    from amp_lab.watching.replaying.report import OverflowReport

MOST_CHEAP: Final = 16  # in a run
MOST_FULL: Final = 3
_LOWER: Final = 2.0**8  # a scale that is this much smaller cures a scale that was merely too large


class Replaying:
    """Knows the closure that computes the loss of the batch at hand, and when to call it.

    A batch runs again with the random numbers of its first time: those before the first forward pass with gradients
    since the last backward pass are kept. (Of micro-batches, the one at hand is the last.) Weights and buffers are
    those of now: of a step that was skipped, the weights are the same.
    """

    def __init__(self, closure: Callable[[], torch.Tensor]) -> None:
        self._closure = closure
        self.reports: list[OverflowReport] = []
        self._cheap, self._full = 0, 0  # batches
        self._has_disagreed = False
        self._step = 0  # that was run again last
        self._went_back = True
        self._random: RandomNumbers | None = None
        self._generators: list[torch.Generator] = []

    # -- what the loop does

    def begins_forward(self, recorder: Recorder) -> None:
        """A watched model is called. (Without gradients it is not trained: that is a validation between two steps.)"""
        if not (self._went_back and torch.is_grad_enabled() and self._is_left()):
            return
        if self._random is None:
            self._generators = generators_of(recorder.models)
            self._random = RandomNumbers(self._generators)
        self._went_back = False
        self._random.keep()

    def went_back(
        self, recorder: Recorder, losses: Sequence[torch.Tensor] | None, optimizers: Sequence[int] = ()
    ) -> None:
        """A backward pass has run.

        Args:
            losses: of a loop without a scaler, of whose numbers nobody asks: here a GPU is asked, and the host waits.
            optimizers: those whose gradients it has written.
        """
        self._went_back = True
        if losses is None or not self._is_due(recorder):
            return
        parameters = [each for number in optimizers for each in recorder.states.parameters(number)]
        with recorder.paused():
            is_finite = all_finite(losses, parameters)
        if not is_finite:
            self._run_again(recorder, None)

    def stepped(self, recorder: Recorder, scaler: Any, skipped: float | torch.Tensor) -> None:
        """A scaler was asked for a step. (Only a fused optimizer's is unknown to the host, if it is on a GPU.)"""
        if self._is_due(recorder) and float(skipped) > 0:
            self._run_again(recorder, float(recorder.scale_of(scaler)))

    def _is_left(self) -> bool:
        return self._full < MOST_FULL and self._cheap < MOST_CHEAP

    # -- running again

    def _is_due(self, recorder: Recorder) -> bool:
        return self._is_left() and self._step != recorder.steps.now and recorder.runs_here()

    def _run_again(self, recorder: Recorder, scale: float | None) -> None:
        """Run the batch again. What goes wrong in it is noted, and never reaches the loop."""
        self._step = recorder.steps.now
        try:
            with unseen(), random_states_kept(gpus(), self._generators), torch.enable_grad():
                if self._random is not None:
                    self._random.restore()
                report = self._report(recorder, scale)
        except (Exception, SystemExit) as error:
            self._full = MOST_FULL  # it would fail each time
            words = f"{type(error).__name__}: {str(error)[:200]}"
            recorder.note(
                f"A replay failed: step {self._step:,} could not be run again, and no other will be ({words})"
            )
            return
        if report is None or report.cause == "scale-too-large":
            return
        if report.ok:
            self._disagrees(recorder)
            return
        self.reports.append(report)
        place: dict[str, Any] = {} if report.source is None else {"where": _with_whole_path(report.source)}
        recorder.emit(Replayed, report=report, **place)

    def _disagrees(self, recorder: Recorder) -> None:
        if self._has_disagreed:
            return
        self._has_disagreed = True
        recorder.note(
            f"A replay does not agree: step {self._step:,} overflowed, and its batch is finite when it is run again. "
            "The function given as replay must compute the same loss, of the same batch, in the loop's autocast region"
        )

    def _report(self, recorder: Recorder, scale: float | None) -> OverflowReport | None:
        """Return what a full explanation says; None if there is nothing to explain.

        So it is where the scale was merely too large, where there is none any more, and where the batch is finite.
        """
        from amp_lab.watching.replaying.explaining import explain

        if scale is not None:
            if not scale > 0:
                return None
            cure = self._cure(recorder, scale)
            if cure == scale:
                self._disagrees(recorder)
            if cure is not None:
                return None
        self._full += 1
        return explain(self._loss, recorder.models, scales=(scale or 1.0,), hidden=False)

    def _loss(self) -> torch.Tensor:
        """Return what the closure returns. That must be the loss as it is: scales are tried here."""
        with _scaling_refused():
            return self._closure()

    def _cure(self, recorder: Recorder, scale: float) -> float | None:
        """Return the first scale at which the batch is finite: the loop's own, a much smaller one, 1; or None."""
        from amp_lab.watching.replaying.batches import Batch, kept
        from amp_lab.watching.replaying.explaining import device_of, roots_of
        from amp_lab.watching.replaying.replays import replay

        roots = roots_of(recorder.models, self._closure)
        device = device_of(roots)
        batch = Batch(self._loss, roots, runs_on=device, device_type=device)
        lower = scale / _LOWER
        self._cheap += 1
        with kept(batch):
            for each in (scale, lower, 1.0) if lower > 1.0 else (scale, lower):
                run = replay(batch, each)
                if run.finite:
                    return each
                if run.loss - run.loss != 0.0:  # no scale changes that
                    return None
        return None


def _with_whole_path(source: Source) -> Source:
    """Return a line as events have it: a report names its file as it is seen from the working directory."""
    whole = os.path.abspath(source.file)
    is_file = whole in linecache.cache or os.path.exists(whole)
    return dataclasses.replace(source, file=whole) if is_file else source


@contextlib.contextmanager
def _scaling_refused() -> Iterator[None]:
    """Let no scaler scale a loss: it would be scaled twice."""

    def refusing(scale: Callable[..., Any]) -> Callable[..., Any]:
        def refused(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scalers.is_enabled(scaler):
                raise TrainingStepError(f"{type(scaler).__name__}.scale")
            return scale(scaler, *args, **kwargs)

        return refused

    kinds = (torch.amp.GradScaler, LossScaler)
    before = [(kind, kind.scale) for kind in kinds]
    for kind, scale in before:
        kind.scale = refusing(scale)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, scale in before:
            kind.scale = scale  # type: ignore[method-assign]


def without_scaler(recorder: Recorder) -> bool:
    """Return whether the loop uses no scaler that scales."""
    every = [*recorder.given_scalers, recorder.last_scaler]
    return not any(each is not None and scalers.is_enabled(each) for each in every)
