"""Clipping of gradients, and measuring their norm.

Many scripts import `clip_grad_norm_` by name before anybody watches. So not only the public functions are replaced,
but also what they call themselves: private functions of their module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, Literal

import torch
from torch.nn.utils import clip_grad

from amp_lab.watching.recording.events import Clipped, Gradients
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.noting.tensors import tensors_in
from amp_lab.watching.recording.numbers import later
from amp_lab.watching.recording.recorder import Noting, Recorder

_MODULES: Final = (clip_grad, torch.nn.utils)


def install(recorder: Recorder) -> None:
    for name in ("_get_total_norm", "get_total_norm"):
        _install(recorder, name, "norm", total_norm)
    for name in ("_clip_grads_with_norm_", "clip_grads_with_norm_"):
        _install(recorder, name, "clip", clip_with_norm)
    # All of them call this one, also when they themselves were imported by name before.
    _install(recorder, "_group_tensors_by_device_and_dtype", "group", group)


def _install(recorder: Recorder, name: str, what: str, noting: Any) -> None:
    for module in _MODULES:
        if name in vars(module):
            recorder.around(module, name, what, noting)


def total_norm(recorder: Recorder, tensors: Any, *args: Any, **kwargs: Any) -> Noting:
    """Note a norm that is measured; or one that clip_grad_norm_ refuses to clip by."""
    caller = _caller("clip_grad_norm_")
    gradients = list(tensors_in(tensors)) if caller is None else []
    of = _owners(recorder, gradients)
    if caller is None and not of:  # it may be the norm of anything
        return None

    def after(result: Any, error: BaseException | None) -> None:
        raised = error is not None
        if caller is None:
            norm = None if raised else later(result)
            _note(recorder, "measured", of, len(gradients), norm=norm, raised=raised)
        elif raised:
            every = _listed(caller.f_locals.get("parameters"))
            _note(recorder, "norm", recorder.owners.of_all(every), len(every), **_asked(caller), raised=True)

    return after


def clip_with_norm(
    recorder: Recorder, parameters: Any, max_norm: float, norm: Any, *args: Any, **kwargs: Any
) -> Noting:
    """Note that gradients are clipped by their norm: clip_grad_norm_, too, does it here."""
    caller = _caller("clip_grad_norm_")
    every, here = _listed(parameters), recorder.here
    of = recorder.owners.of_all(every)
    if not of and not (recorder.runs_here() and recorder.is_begun()):  # another loop's
        return None
    recorder.settle(of)
    here.clipped = () if every else None

    def after(result: Any, error: BaseException | None) -> None:
        clipped, owners = every, of
        if not every and here.clipped:  # the parameters of a generator
            clipped, owners = list(here.clipped), _owners(recorder, here.clipped)
        asked = {"limit": float(max_norm)} if caller is None else _asked(caller)
        _note(recorder, "norm", owners, len(clipped), **asked, norm=later(norm), raised=error is not None)

    return after


def group(recorder: Recorder, groups: Sequence[Any], *args: Any, **kwargs: Any) -> Noting:
    """Note what was not seen at the door: clipping by value, and functions that were imported by name before."""
    here = recorder.here
    if "norm" in here.inside or ("clip" in here.inside and here.clipped is not None):
        return None
    if not recorder.runs_here():  # another loop's
        return None
    gradients = list(tensors_in(groups))
    if "clip" in here.inside:
        here.clipped = tuple(gradients)
        return None
    of, asked = _owners(recorder, gradients), dict[str, Any]()
    if not of and not recorder.is_begun():  # another loop's, which began earlier
        return None
    how: Literal["norm", "value", "measured"] = "measured"
    if (caller := _caller("clip_grad_value_")) is not None:
        how, asked = "value", {"limit": float(caller.f_locals["clip_value"])}
    elif (caller := _caller("_clip_grads_with_norm_")) is not None:
        found = caller.f_locals
        how, asked = "norm", {"limit": float(found["max_norm"]), "norm": later(found["total_norm"])}
    elif not of or _caller("_get_total_norm") is None:
        return None
    return lambda result, error: _note(recorder, how, of, len(gradients), **asked)


def _asked(caller: FrameType) -> dict[str, Any]:
    """Return what clip_grad_norm_ was asked for."""
    found = caller.f_locals
    return {
        "limit": float(found["max_norm"]),
        "error_if_nonfinite": bool(found.get("error_if_nonfinite", False)),
    }


def _note(
    recorder: Recorder,
    how: Literal["norm", "value", "measured"],
    of: tuple[int, ...],
    parameters: int,
    *,
    limit: float | None = None,
    norm: Later[float] | None = None,
    raised: bool = False,
    error_if_nonfinite: bool = False,
) -> None:
    states = recorder.states
    recorder.emit(
        Clipped,
        subject=("optimizer", of[0] if of else 0),
        how=how,
        optimizers=of,
        state=_together([states.of(each) for each in of]),
        limit=limit,
        norm=norm,
        parameters=parameters,
        of_all=sum([len(states.parameters(each)) for each in of]),
        error_if_nonfinite=error_if_nonfinite,
        raised=raised,
    )


def _together(states: list[Gradients]) -> Gradients:
    """Return the state of gradients of several optimizers."""
    full = [each for each in states if each not in (Gradients.NONE, Gradients.ZERO)] or states
    if not full:
        return Gradients.NONE
    return full[0] if len(set(full)) == 1 else Gradients.MIXED


def _owners(recorder: Recorder, gradients: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the optimizers to which gradients belong."""
    if not gradients or not recorder.runs_here():
        return ()
    ids = {id(each) for each in gradients}
    return tuple(
        number
        for number in range(len(recorder.optimizers))
        if any(each.grad is not None and id(each.grad) in ids for each in recorder.states.parameters(number))
    )


def _listed(parameters: Any) -> list[Any]:
    """Return parameters that can be looked at twice."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    return list(parameters) if isinstance(parameters, list | tuple) else []


def _caller(name: str) -> FrameType | None:
    """Return the frame of the function of `clip_grad` that makes the call that is noted; None if another makes it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals is not vars(clip_grad):
        if not str(frame.f_globals.get("__name__")).startswith("amp_lab.watching."):
            return None
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_name == name else None
