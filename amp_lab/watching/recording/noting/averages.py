"""Averages of the weights."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from amp_lab.watching.recording.events import Averaged
from amp_lab.watching.recording.patches import defining, with_subclasses
from amp_lab.watching.recording.recorder import Noting, Recorder


def install(recorder: Recorder) -> None:
    for kind in with_subclasses(AveragedModel):
        if "update_parameters" in vars(kind) and defining(kind, "update_parameters"):
            recorder.around(kind, "update_parameters", "average", update)


def update(recorder: Recorder, average: AveragedModel, *args: Any, **kwargs: Any) -> Noting:
    def after(result: Any, error: BaseException | None) -> None:
        if error is not None:
            return
        first = next((each for each in average.module.parameters() if each.is_floating_point()), None)
        recorder.emit(
            Averaged,
            kind=type(average).__name__,
            average=id(average),
            dtype=torch.float32 if first is None else first.dtype,
            share=share(average),
        )

    return after


def share(average: AveragedModel) -> float | None:
    """Return the share of the new weights, if the average is PyTorch's exponential one: 1 - decay."""
    for name in ("multi_avg_fn", "avg_fn"):
        function = getattr(average, name, None)
        if inspect.isfunction(function):
            # get_ema_multi_avg_fn(decay) keeps it in the function it returns, and has no other way to ask.
            decay = inspect.getclosurevars(inspect.unwrap(function)).nonlocals.get("decay")
            if isinstance(decay, float):
                return 1 - decay
    return None
