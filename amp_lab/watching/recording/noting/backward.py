"""Backward passes."""

from __future__ import annotations

import threading
from typing import Any, Literal, NamedTuple

import torch

from amp_lab.watching.recording.events import Backward
from amp_lab.watching.recording.noting.tensors import tensors_in
from amp_lab.watching.recording.numbers import finite
from amp_lab.watching.recording.recorder import Noting, Recorder
from amp_lab.watching.recording.replaying import without_scaler
from amp_lab.watching.recording.scaled import NOT_MADE, Making, ScaledLoss, making


def install(recorder: Recorder) -> None:
    # Tensor.backward looks the function up here at each call, so its calls are seen, too.
    recorder.around(torch.autograd, "backward", "backward", backward)
    recorder.around(torch.autograd, "grad", "backward", grad)


def backward(recorder: Recorder, tensors: Any, *args: Any, **kwargs: Any) -> Noting:
    if _is_inner(recorder) or not _is_the_loops(recorder, tensors):
        return None
    losses = _begun(recorder, tensors)
    create = bool(kwargs.get("create_graph", args[2] if len(args) > 2 else False))
    recorder.look("before_backward")
    before, marks = recorder.states.all(), recorder.states.marks()
    seeds = list(tensors_in(args[0] if args else kwargs.get("grad_tensors")))
    origin = _origin(recorder, losses, seeds)
    if seeds and origin.scaled is None:
        origin = origin._replace(scaled=_sent_before(recorder), exactly=False)
    recorder.backwards += 1

    def after(result: Any, error: BaseException | None) -> None:
        recorder.backwards -= 1
        scaled, here = origin.scaled, recorder.runs_here()
        touched = recorder.states.written(marks) if here else ()
        if not (touched or scaled or (here and recorder.fresh)):
            return
        recorder.opens()
        for optimizer in touched:
            recorder.states.add_gradients(optimizer, None if scaled is None else scaled.factor)
        _note(recorder, "backward", losses, origin, create, before, touched, error)
        recorder.look("after_backward")
        if recorder.replaying is not None and error is None:
            plain = scaled is None and not seeds and without_scaler(recorder)
            recorder.replaying.went_back(recorder, losses if plain else None, touched)

    return after


def grad(recorder: Recorder, outputs: Any, *args: Any, **kwargs: Any) -> Noting:
    if _is_inner(recorder) or not _is_the_loops(recorder, outputs):
        return None
    losses = _begun(recorder, outputs)
    create = bool(kwargs.get("create_graph", args[3] if len(args) > 3 else False))
    origin = _origin(
        recorder, losses, list(tensors_in(args[1] if len(args) > 1 else kwargs.get("grad_outputs")))
    )
    recorder.backwards += 1

    def after(result: Any, error: BaseException | None) -> None:
        recorder.backwards -= 1
        scaled = origin.scaled
        if not (scaled or _concerns(recorder)):
            return
        recorder.opens()
        recorder.states.taken = None if scaled is None else scaled.factor
        _note(recorder, "grad", losses, origin, create, recorder.states.all(), (), error)

    return after


def _is_inner(recorder: Recorder) -> bool:
    """Return whether it is called by another backward pass, which PyTorch may run in a thread of its own."""
    return recorder.backwards > 0 and isinstance(threading.current_thread(), threading._DummyThread)


def _is_the_loops(recorder: Recorder, losses: Any) -> bool:
    """Return whether it is the watched loop's: another thread may train another model."""
    if not recorder.runs_here():
        # A scaled loss that is known belongs to it, wherever its backward pass runs.
        recorder.here.called = any(recorder.scaled.exactly(each) is not None for each in tensors_in(losses))
    return recorder.runs_here()


def _concerns(recorder: Recorder) -> bool:
    """Return whether a pass that wrote to no watched gradient may be of a watched model all the same."""
    return recorder.fresh or not recorder.history.counts["Forward"]


def _begun(recorder: Recorder, tensors: Any) -> list[torch.Tensor]:
    if _concerns(recorder):  # else it is seen afterwards: another loop may run beside
        recorder.opens()
    recorder.settle(range(len(recorder.optimizers)))
    return list(tensors_in(tensors))


class _Origin(NamedTuple):
    """Where a loss came from: the scaled loss that it is, or was computed from, and how the loss itself was made."""

    scaled: ScaledLoss | None
    exactly: bool
    making: Making
    unscaled_part: bool = False
    seeded: bool = False


def _origin(recorder: Recorder, losses: list[torch.Tensor], seeds: list[torch.Tensor]) -> _Origin:
    """Return where losses came from. To be asked before the backward pass, which frees what the graph has saved.

    `seeds` are the gradients it begins from: `loss.backward(gradient=scaler.scale(one))` scales one of them instead.
    """
    exact = [recorder.scaled.exactly(each) for each in losses]
    if exact and exact[0] is not None and None not in exact:
        return _Origin(exact[0], True, exact[0].making)
    found = (each or recorder.scaled.behind(loss) for each, loss in zip(exact, losses, strict=True))
    scaled = next((each for each in found if each is not None), None)
    if seeds:  # a seed may hold a division, and a weight for each of several losses
        scaled = scaled or next(filter(None, map(recorder.scaled.exactly, seeds)), None)
        return _Origin(scaled, scaled is None, NOT_MADE, seeded=True)
    part = scaled is not None and recorder.scaled.has_unscaled_part(losses[0])
    return _Origin(scaled, scaled is None, making(losses[0]) if losses else NOT_MADE, part)


def _sent_before(recorder: Recorder) -> ScaledLoss | None:
    """Return the scaled loss that was sent backward last, since the scaler's update.

    A pass that is seeded goes on from where another pass has ended: pipelines, split learning, cached gradients.
    """
    sent = recorder.scaled.sent
    if sent is None or sent.factor is None or sent.factor.era != recorder.eras[sent.scaler]:
        return None
    return sent


def _note(
    recorder: Recorder,
    how: Literal["backward", "grad"],
    losses: list[torch.Tensor],
    origin: _Origin,
    create_graph: bool,
    before: Any,
    touched: tuple[int, ...],
    error: BaseException | None,
) -> None:
    scaled = origin.scaled
    if scaled is not None:
        recorder.scaled.sent = scaled
    recorder.emit(
        Backward,
        subject=("optimizer", touched[0] if touched else 0),
        how=how,
        losses=tuple([recorder.scaled.number(each) for each in losses]),
        loss_dtype=losses[0].dtype if losses else torch.get_default_dtype(),
        finite=finite(losses),
        scaled_by=None if scaled is None else scaled.scaler,
        exactly=origin.exactly,
        unscaled_part=origin.unscaled_part,
        scale=None if scaled is None else scaled.scale,
        create_graph=create_graph,
        seeded=origin.seeded,
        before=before,
        after=recorder.states.all(),
        touched=touched,
        raised=error is not None,
        **origin.making._asdict(),
    )
