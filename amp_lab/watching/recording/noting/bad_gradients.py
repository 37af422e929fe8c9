"""Which parameters have gradients that are not finite: looked up when a step was skipped, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch

from amp_lab.watching.recording.events import BadGradients
from amp_lab.watching.recording.recorder import Recorder

_FEW: Final = 4  # names
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def note_bad_gradients(recorder: Recorder, optimizer: int) -> None:
    """Note them for an optimizer whose step was skipped. The host waits for a GPU once, as the scaler did before."""
    parameters = [each for each in recorder.states.parameters(optimizer) if _has_numbers(each.grad)]
    if not parameters or not recorder.runs_here():
        return
    bad = [at for at, is_finite in enumerate(_are_finite(parameters)) if not is_finite]
    if not bad:
        return  # another process's, or found by somebody's own scaler in its own way
    names = _names(recorder, optimizer)
    recorder.emit(
        BadGradients,
        subject=("optimizer", optimizer),
        optimizer=optimizer,
        which=tuple([names[id(parameters[at])] for at in bad[:_FEW]]),
        bad=len(bad),
        of=len(parameters),
        place=_place(bad, len(parameters)),
    )


def _has_numbers(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and type(gradient) in _PLAIN and not gradient.is_meta


@torch.no_grad()
def _are_finite(parameters: Sequence[torch.Tensor]) -> list[bool]:
    found = [torch.isfinite(_numbers(each.grad)).all() for each in parameters if each.grad is not None]
    device = found[0].device
    flags: list[bool] = torch.stack([each.to(device) for each in found]).tolist()
    return flags


def _numbers(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient._values() if gradient.layout is torch.sparse_coo else gradient


def _names(recorder: Recorder, optimizer: int) -> dict[int, str]:
    """Return the names of an optimizer's parameters, by their ids."""
    names = {
        id(each): f"parameter {at} of the optimizer"
        for at, each in enumerate(recorder.states.parameters(optimizer))
    }
    for number, model in enumerate(recorder.models):
        before = f"model {number}: " if len(recorder.models) > 1 else ""
        for name, each in model.named_parameters():
            names[id(each)] = before + name.replace("_orig_mod.", "")
    return names


def _place(bad: Sequence[int], of: int) -> Literal["all", "first", "last", "some"]:
    if len(bad) == of:
        return "all"
    if bad[-1] == len(bad) - 1:
        return "first"
    return "last" if bad[0] == of - len(bad) else "some"
