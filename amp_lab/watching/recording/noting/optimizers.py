"""Steps of optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from amp_lab.watching.recording.attributes import attribute
from amp_lab.watching.recording.events import Stepped
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.noting.scalers import about_step
from amp_lab.watching.recording.patches import defining
from amp_lab.watching.recording.recorder import Noting, Recorder, nothing_after


def install(recorder: Recorder) -> None:
    # Hooks, and no replaced `step`: a scheduler keeps the `step` that it finds, and wraps it.
    steps = _Steps(recorder)
    recorder.on_stop(register_optimizer_step_pre_hook(steps.begins).remove)
    recorder.on_stop(register_optimizer_step_post_hook(steps.ends).remove)
    recorder.on_stop(steps.flush)
    for kind in {type(each) for each in recorder.optimizers if not isinstance(each, torch.optim.Optimizer)}:
        for above in defining(kind, "step"):
            recorder.around(above, "step", "optimizer.step", _of_another_kind)


class _Running:
    """A step that runs: what was known of it when it began."""

    def __init__(self, optimizer: int, fields: dict[str, Any]) -> None:
        self.optimizer, self.fields = optimizer, fields


class _Steps:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.listening or torch.compiler.is_compiling():
            return
        try:
            self._begins(optimizer, args[1:], kwargs)
        except Exception as error:
            recorder.failed("optimizer.step", error)

    def _begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        index = recorder.optimizer(optimizer)
        if index is None or _was_asked(recorder, index, optimizer):
            return
        stepping = recorder.here.stepping
        if any(isinstance(each, _Running) and each.optimizer == index for each in stepping):
            self.flush()  # one that has raised an error, which the loop has caught
        recorder.settle([index])
        fields = about_step(recorder, index, optimizer, args, kwargs)
        if fields["closure"]:  # it will make forward and backward passes
            recorder.opens()
        stepping.append(_Running(index, fields))
        recorder.look("before_use", index)

    def ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.listening or torch.compiler.is_compiling():
            return
        stepping = recorder.here.stepping
        if not stepping:  # the scaler has called, which is noted there
            return
        try:
            index = recorder.optimizer(optimizer)
            while stepping and any(
                isinstance(each, _Running) and each.optimizer == index for each in stepping
            ):
                last = stepping.pop()
                assert isinstance(last, _Running)
                _note(recorder, last, raised=last.optimizer != index)
        except Exception as error:
            recorder.failed("optimizer.step", error)

    def flush(self) -> None:
        """Note the steps that have begun and will not end: they have raised an error."""
        stepping = self._recorder.here.stepping
        while stepping:
            last = stepping.pop()
            assert isinstance(last, _Running)
            _note(self._recorder, last, raised=True)


def _was_asked(recorder: Recorder, index: int, optimizer: Any) -> bool:
    """Return whether it is the scaler that calls; then it is noted there."""
    asked = recorder.here.asked
    if asked is None or asked.optimizer != index:
        return False
    asked.ran = True
    asked.found_inf = attribute(optimizer, "found_inf", None)
    return True


def _note(recorder: Recorder, running: _Running, *, raised: bool) -> None:
    recorder.steps.asked(running.optimizer)
    recorder.emit(
        Stepped,
        subject=("optimizer", running.optimizer),
        scaler=None,
        skipped=Later(bool, False),
        ran=True,
        raised=raised,
        **running.fields,
    )
    recorder.look("after_step", running.optimizer)
    if recorder.steps.ended:
        recorder.end_step()


def _of_another_kind(recorder: Recorder, optimizer: Any, *args: Any, **kwargs: Any) -> Noting:
    """Note a step of an object that is no torch.optim.Optimizer."""
    index = recorder.optimizer(optimizer)
    if index is None:
        return None
    if _was_asked(recorder, index, optimizer):
        return nothing_after
    recorder.settle([index])
    running = _Running(index, about_step(recorder, index, optimizer, args, kwargs))
    recorder.look("before_use", index)
    return lambda result, error: _note(recorder, running, raised=error is not None)
