"""Calls of loss scalers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from amp_lab.scaling.scaler import LossScaler
from amp_lab.watching.recording import scalers
from amp_lab.watching.recording.events import (
    Scaled,
    ScaleRead,
    ScalerMade,
    StateLoaded,
    StateTaken,
    Stepped,
    Unscaled,
    Updated,
)
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.noting.bad_gradients import note_bad_gradients
from amp_lab.watching.recording.noting.tensors import tensors_in
from amp_lab.watching.recording.numbers import finite, later, number, rates
from amp_lab.watching.recording.patches import defining, with_subclasses
from amp_lab.watching.recording.recorder import Noting, Recorder
from amp_lab.watching.recording.scaled import FEW, ScaledLoss, making
from amp_lab.watching.recording.threads import Asked


def install(recorder: Recorder) -> None:
    known = with_subclasses(torch.amp.grad_scaler.GradScaler) + with_subclasses(LossScaler)
    given = [type(each) for each in recorder.given_scalers]
    classes = dict.fromkeys(
        above for kind in (*known, *given) for above in reversed(kind.__mro__) if above is not object
    )
    calls: dict[str, Callable[..., Noting]] = {
        "scale": scale,
        "unscale_": unscale,
        "step": step,
        "update": update,
        "get_scale": get_scale,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
    }
    for kind in classes:
        for name, noting in calls.items():
            if kind in defining(kind, name)[:1]:
                recorder.around(kind, name, f"scaler.{name}", noting)
    for kind in known:
        if "__init__" in vars(kind):
            recorder.around(kind, "__init__", "scaler made", made)


def made(recorder: Recorder, scaler: Any, *args: Any, **kwargs: Any) -> Noting:
    def after(result: Any, error: BaseException | None) -> None:
        if error is not None:
            return
        index = recorder.add_scaler(scaler, asked=_arguments(type(scaler), args, kwargs))
        kind = type(scaler).__name__
        recorder.emit(ScalerMade, scaler=index, enabled=scalers.is_enabled(scaler), kind=kind)

    return after


def _arguments(kind: type, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    function = inspect.unwrap(kind.__init__)  # type: ignore[misc]  # any class's
    return dict(inspect.signature(function).bind(None, *args, **kwargs).arguments)


def scale(recorder: Recorder, scaler: Any, outputs: Any, *_: Any, **__: Any) -> Noting:
    if not recorder.concerns(scaler):
        return None
    recorder.opens()
    # PyTorch returns a generator's results as they are asked for: it is not taken from here.
    given = list(tensors_in(outputs)) if isinstance(outputs, torch.Tensor | list | tuple) else []
    already = [recorder.scaled.exactly(each) or recorder.scaled.behind(each, FEW) for each in given]

    def after(result: Any, error: BaseException | None) -> None:
        recorder.last_scaler = scaler
        if error is None and given:
            _note_scaled(recorder, scaler, given, already, list(tensors_in(result)))

    return after


def _note_scaled(
    recorder: Recorder,
    scaler: Any,
    given: list[torch.Tensor],
    already: list[ScaledLoss | None],
    results: list[torch.Tensor],
) -> None:
    index = recorder.scaler(scaler)
    value = recorder.scales[index].of(scaler)
    factor, now = recorder.factor(scaler, index, value), Later(float, value)
    for loss, result, before in zip(given, results, already, strict=False):
        made = making(loss)
        recorder.scaled.remember(result, ScaledLoss(index, now, factor, made))
        recorder.emit(
            Scaled,
            subject=("scaler", index),
            scaler=index,
            dtype=loss.dtype,
            shape=tuple(loss.shape),
            scale=now,
            finite=finite([loss]),
            result=recorder.scaled.number(result),
            result_dtype=result.dtype,
            given=recorder.scaled.number(loss),
            again=None if before is None or before.factor is None else before.scaler,
            **made._asdict(),
        )


def unscale(recorder: Recorder, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> Noting:
    index = recorder.optimizer(optimizer)
    if index is None:
        return None
    number = recorder.trains(scaler)
    recorder.settle([index])
    by_step = recorder.here.asked is not None
    before, value = recorder.states.of(index), recorder.scales[number].of(scaler)
    if not by_step:  # else this was told when the step began
        recorder.look("before_use", index)

    def after(result: Any, error: BaseException | None) -> None:
        recorder.last_scaler = scaler
        works = error is None and scalers.is_enabled(scaler)
        if works:
            recorder.states.unscale(index)
        found = scalers.found_inf(scaler, optimizer) if works else None
        recorder.emit(
            Unscaled,
            subject=("optimizer", index),
            scaler=number,
            optimizer=index,
            before=before,
            scale=Later(float, value),
            found_inf=None if found is None else Later(_is_positive, found),
            by_step=by_step,
            raised=error is not None,
        )

    return after


def _is_positive(value: float) -> bool:
    return value > 0


def step(recorder: Recorder, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Noting:
    index = recorder.optimizer(optimizer)
    if index is None:
        return None
    number = recorder.trains(scaler)
    recorder.settle([index])
    here = recorder.here
    fields = about_step(recorder, index, optimizer, args, kwargs)
    value, enabled = recorder.scales[number].of(scaler), scalers.is_enabled(scaler)
    recorder.look("before_use", index)
    asked, outside = Asked(index), here.asked
    here.asked = asked

    def after(result: Any, error: BaseException | None) -> None:
        here.asked = outside
        recorder.last_scaler = scaler
        works = enabled and error is None
        if works:
            recorder.states.unscale(index)
        skipped = _skipped(scaler, optimizer, asked, fields["fused"]) if works else 0.0
        recorder.steps.asked(index)
        recorder.skip(skipped)
        recorder.emit(
            Stepped,
            subject=("optimizer", index),
            scaler=number,
            skipped=Later(_is_positive, skipped),
            ran=asked.ran,
            scale=Later(float, value),
            raised=error is not None,
            **fields,
        )
        recorder.look("after_step", index)
        if works:
            _note_skip(recorder, scaler, number, index, skipped)
        if recorder.steps.ended:
            recorder.end_step()

    return after


def _note_skip(
    recorder: Recorder, scaler: Any, number: int, optimizer: int, skipped: float | torch.Tensor
) -> None:
    """Look closer at a step that was skipped, where the host knows that it was."""
    recorder.collapsing.stepped(number, skipped)
    if not isinstance(skipped, torch.Tensor) and skipped > 0:
        recorder.quietly("gradients", note_bad_gradients, recorder, optimizer)
    if recorder.replaying is not None:
        recorder.replaying.stepped(recorder, scaler, skipped)


def about_step(recorder: Recorder, index: int, optimizer: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return what is known of a step before it is made, by the fields of the event."""
    closure = kwargs.get("closure", args[0] if args else None)
    lr = rates(optimizer.param_groups)
    recorder.see_rates(index, lr)
    return {
        "optimizer": index,
        "state": recorder.states.of(index),
        "fused": scalers.is_fused(optimizer),
        "closure": callable(closure),
        "parameters": len(recorder.states.parameters(index)),
        "with_gradient": recorder.states.with_gradient(index),
        "rates": lr,
    }


def _skipped(scaler: Any, optimizer: Any, asked: Asked, fused: bool) -> float | torch.Tensor:
    """Return whether an enabled scaler has left the step out: above 0 if so."""
    if fused:
        found = asked.found_inf if asked.found_inf is not None else scalers.found_inf(scaler, optimizer)
        return 0.0 if found is None else number(found)
    return float(not asked.ran)


def update(recorder: Recorder, scaler: Any, *args: Any, **kwargs: Any) -> Noting:
    if not recorder.concerns(scaler):
        return None
    index = recorder.scaler(scaler)
    scale = recorder.scales[index]
    before = scale.of(scaler)
    given = kwargs.get("new_scale", args[0] if args else None) is not None

    def after(result: Any, error: BaseException | None) -> None:
        recorder.last_scaler = scaler
        now, enabled = scale.of(scaler), scalers.is_enabled(scaler)
        recorder.eras[index] += 1
        if index == 0 and enabled:
            recorder.history.scale(recorder.steps.now, before, now)
            if recorder.this_rank is not None:
                recorder.this_rank.numbers.scale(recorder.steps.now, now)
        recorder.emit(
            Updated,
            subject=("scaler", index),
            scaler=index,
            before=Later(float, before),
            after=Later(float, now),
            given=given,
            raised=error is not None,
        )
        if error is None and not recorder.steps.ended:
            recorder.steps.end()
            recorder.end_step()
        if error is None and enabled:
            recorder.collapsing.updated(recorder, index, now)

    return after


def get_scale(recorder: Recorder, scaler: Any) -> Noting:
    # state_dict and pickle read it, too
    if not (recorder.concerns(scaler) and recorder.places.is_users_call()):
        return None

    def after(result: Any, error: BaseException | None) -> None:
        if error is None:
            index = recorder.scaler(scaler)
            recorder.emit(ScaleRead, subject=("scaler", index), scaler=index, scale=later(result))

    return after


def state_dict(recorder: Recorder, scaler: Any, *_: Any, **__: Any) -> Noting:
    def after(result: Any, error: BaseException | None) -> None:
        if error is None:
            index, states = recorder.scaler(scaler), recorder.states.all()
            about: dict[str, Any] = {"of": "scaler", "index": index, "state": states, "empty": not result}
            recorder.emit(StateTaken, subject=("scaler", index), **about)

    return after


def load_state_dict(recorder: Recorder, scaler: Any, state: Any, *_: Any, **__: Any) -> Noting:
    def after(result: Any, error: BaseException | None) -> None:
        index = recorder.scaler(scaler)
        about: dict[str, Any] = {
            "of": "scaler",
            "index": index,
            "empty": not state,
            "raised": error is not None,
        }
        recorder.emit(StateLoaded, subject=("scaler", index), **about)

    return after
