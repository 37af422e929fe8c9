"""zero_grad of optimizers and of models."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from amp_lab.watching.recording.events import Gradients, ZeroGrad
from amp_lab.watching.recording.patches import defining
from amp_lab.watching.recording.recorder import Noting, Recorder


def install(recorder: Recorder) -> None:
    kinds: set[type] = {torch.optim.Optimizer, *(type(each) for each in recorder.optimizers)}
    for above in dict.fromkeys(above for kind in kinds for above in defining(kind, "zero_grad")):
        recorder.around(above, "zero_grad", "optimizer.zero_grad", of_optimizer)
    kinds = {nn.Module, *(type(each) for each in recorder.models)}
    for above in dict.fromkeys(above for kind in kinds for above in defining(kind, "zero_grad")):
        recorder.around(above, "zero_grad", "model.zero_grad", of_model)


def of_optimizer(recorder: Recorder, optimizer: Any, *args: Any, **kwargs: Any) -> Noting:
    index = recorder.optimizer(optimizer)
    if index is None:
        return None
    before = recorder.states.of(index)
    return lambda result, error: _note(recorder, "optimizer", (index,), (before,), all_of=True)


def of_model(recorder: Recorder, model: nn.Module, *args: Any, **kwargs: Any) -> Noting:
    reached = {id(each) for each in model.parameters()}
    parameters = recorder.states.parameters
    touched = tuple(
        number
        for number in range(len(recorder.optimizers))
        if any(id(each) in reached for each in parameters(number))
    )
    if not touched:
        return None
    before = tuple(recorder.states.of(each) for each in touched)
    all_of = all(id(each) in reached for number in touched for each in parameters(number))
    return lambda result, error: _note(recorder, "model", touched, before, all_of=all_of)


def _note(
    recorder: Recorder,
    by: Literal["optimizer", "model"],
    optimizers: tuple[int, ...],
    before: tuple[Gradients, ...],
    *,
    all_of: bool,
) -> None:
    states = recorder.states
    none = {each for each in optimizers if states.are_none(each)}
    for each in optimizers:
        if each in none:
            states.set(each, Gradients.NONE)
        elif all_of:
            states.set(each, Gradients.ZERO)
    recorder.emit(
        ZeroGrad,
        subject=("optimizer", optimizers[0]),
        optimizers=optimizers,
        by=by,
        set_to_none=len(none) == len(optimizers),
        before=before,
        all_of=all_of,
    )
