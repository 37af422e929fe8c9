"""Forward passes of the watched models."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch import nn

from amp_lab.watching.recording.events import Forward
from amp_lab.watching.recording.known import first_parameters
from amp_lab.watching.recording.noting.tensors import shapes
from amp_lab.watching.recording.recorder import Recorder
from amp_lab.watching.recording.threads import Passing


def install(recorder: Recorder) -> None:
    for number, model in enumerate(recorder.models):
        watched = _Watched(recorder, number, model)
        # First of the hooks before, and last of those after: what other hooks do belongs to the pass.
        before = model.register_forward_pre_hook(Hook(watched.begins), with_kwargs=True, prepend=True)
        after = model.register_forward_hook(Hook(watched.ends), with_kwargs=True, always_call=True)
        recorder.on_stop(before.remove)
        recorder.on_stop(after.remove)


class Hook:
    """A hook that stays behind when its module is copied or pickled: see `copies.py`.

    A module that copies itself in a way of its own gets in its place a function of Python's library that takes anything
    and does nothing: the watch is not copied with it, and it can be loaded where there is no amp_lab.
    """

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Watched:
    """One model that is watched."""

    def __init__(self, recorder: Recorder, number: int, model: nn.Module) -> None:
        self._recorder, self._number = recorder, number
        self._first, self._last = first_parameters(model)

    def begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.listening:
            return
        try:
            if not _is_recomputed():
                recorder.opens()
                recorder.called_here()
                recorder.fresh = True
                if recorder.replaying is not None:
                    recorder.replaying.begins_forward(recorder)
                recorder.look("forward")
            recorder.here.passing.append(Passing(self._number, sys.exc_info()[1]))
        except Exception as error:
            recorder.failed("forward", error)

    def ends(self, model: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        recorder = self._recorder
        if not recorder.listening:
            return
        try:
            self._note(model, args, kwargs, outputs)
        except Exception as error:
            recorder.failed("forward", error)

    def _note(self, model: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        recorder, passing = self._recorder, self._popped()
        if passing is None:  # it began before the watch did
            return
        inputs = shapes(args, kwargs)
        recorder.emit(
            Forward,
            subject=("model", self._number),
            model=self._number,
            device_type="cpu" if self._first is None else self._first.device.type,
            training=model.training,
            grad=torch.is_grad_enabled(),
            inputs=inputs,
            outputs=shapes(outputs),
            inside=passing.inside,
            recomputed=_is_recomputed(),
            weights=self._versions(),
            weights_dtype=None if self._first is None or not self._first.requires_grad else self._first.dtype,
            # PyTorch calls this hook while it handles an exception that the pass has raised.
            raised=outputs is None and sys.exc_info()[1] is not passing.handling,
        )

    def _popped(self) -> Passing | None:
        passing = self._recorder.here.passing
        while passing:
            last = passing.pop()
            if last.model == self._number:
                return last
        return None

    def _versions(self) -> int | None:
        if self._first is None or self._last is None or not self._first.requires_grad:
            return None
        return self._first._version + self._last._version


def _is_recomputed() -> bool:
    """Return whether a backward pass runs in this thread, and computes anew what was not kept for it.

    Only a private function tells: another thread's backward pass, which may be another model's, does not count.
    """
    return torch._C._current_graph_task_id() != -1
