"""Learning-rate schedulers."""

from __future__ import annotations

from typing import Any

from torch.optim import lr_scheduler

from amp_lab.watching.recording.attributes import attribute
from amp_lab.watching.recording.events import Scheduled, StateLoaded, StateTaken
from amp_lab.watching.recording.numbers import rates
from amp_lab.watching.recording.patches import defining, with_subclasses
from amp_lab.watching.recording.recorder import Noting, Recorder


def install(recorder: Recorder) -> None:
    kinds = [*with_subclasses(lr_scheduler.LRScheduler), *(type(each) for each in recorder.given_schedulers)]
    calls = {"step": step, "state_dict": state_dict, "load_state_dict": load_state_dict}
    for name, noting in calls.items():
        for above in dict.fromkeys(above for kind in kinds for above in defining(kind, name)):
            recorder.around(above, name, f"scheduler.{name}", noting)
    # A scheduler makes a step, and lets others make theirs, when it is made. That is none of the loop's.
    for above in dict.fromkeys(above for kind in kinds for above in defining(kind, "__init__")):
        recorder.around(above, "__init__", "scheduler made", made)


def made(recorder: Recorder, scheduler: Any, *args: Any, **kwargs: Any) -> Noting:
    def after(result: Any, error: BaseException | None) -> None:
        for optimizer in _optimizers(scheduler):
            index = recorder.known.optimizers.get(optimizer)
            if index is not None:
                recorder.lr[index] = rates(optimizer.param_groups)

    return after


def step(recorder: Recorder, scheduler: Any, *args: Any, **kwargs: Any) -> Noting:
    if "scheduler made" in recorder.here.inside:
        return None
    own = next((each for each in _optimizers(scheduler) if recorder.optimizer(each) is not None), None)
    optimizer = None if own is None else recorder.optimizer(own)
    if optimizer is None and scheduler not in recorder.given_schedulers:
        return None  # of an optimizer that is not watched
    index = recorder.scheduler(scheduler)
    # Its own optimizer may be an older one of the same parameters: the rates of that are told.
    groups = [] if own is None else own.param_groups
    before = rates(groups)
    if optimizer is not None:
        recorder.see_rates(optimizer, rates(recorder.optimizers[optimizer].param_groups))
    metric = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) or "metrics" in kwargs
    given = not metric and (kwargs.get("epoch", args[0] if args else None) is not None)

    def after(result: Any, error: BaseException | None) -> None:
        if optimizer is not None:
            recorder.lr[optimizer] = rates(recorder.optimizers[optimizer].param_groups)
        recorder.emit(
            Scheduled,
            subject=("scheduler", index),
            scheduler=index,
            kind=type(scheduler).__name__,
            optimizer=optimizer,
            before=before,
            after=rates(groups),
            with_metric=metric,
            given=given,
        )

    return after


def _optimizers(scheduler: Any) -> list[Any]:
    """Return the optimizers whose rates a scheduler sets: its own, or those of the schedulers in it."""
    own = attribute(scheduler, "optimizer", None)
    if own is not None:
        return [own]
    inner = attribute(scheduler, "_schedulers", None)
    return [each for scheduler in inner for each in _optimizers(scheduler)] if isinstance(inner, list) else []


def state_dict(recorder: Recorder, scheduler: Any, *_: Any, **__: Any) -> Noting:
    index = recorder.scheduler(scheduler)

    def after(result: Any, error: BaseException | None) -> None:
        if error is None:
            states = recorder.states.all()
            recorder.emit(StateTaken, subject=("scheduler", index), of="scheduler", index=index, state=states)

    return after


def load_state_dict(recorder: Recorder, scheduler: Any, state: Any, *_: Any, **__: Any) -> Noting:
    index = recorder.scheduler(scheduler)
    about: dict[str, Any] = {"of": "scheduler", "index": index, "empty": not state}
    return lambda result, error: recorder.emit(
        StateLoaded, subject=("scheduler", index), raised=error is not None, **about
    )
