"""Which parameters have gradients that are not finite: looked up when a step was skipped, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from amp_lab.watching.recording.events import BadGradients
from amp_lab.watching.recording.finite import gradients, not_finite
from amp_lab.watching.recording.recorder import Recorder

_FEW: Final = 4  # names


def note_bad_gradients(recorder: Recorder, optimizer: int) -> None:
    """Note them for an optimizer whose step was skipped. The host waits for a GPU once, as the scaler did before."""
    if not recorder.runs_here():
        return
    found = list(gradients(recorder.states.parameters(optimizer)))
    bad = not_finite([numbers for _, numbers in found])
    if not bad:
        return  # another process's, or found by somebody's own scaler in its own way
    names = _names(recorder, optimizer)
    recorder.emit(
        BadGradients,
        subject=("optimizer", optimizer),
        optimizer=optimizer,
        which=tuple([names[id(found[at][0])] for at in bad[:_FEW]]),
        bad=len(bad),
        of=len(found),
        place=_place(bad, len(found)),
    )


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
