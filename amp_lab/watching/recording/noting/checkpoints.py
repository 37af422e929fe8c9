"""States taken, loaded and saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import torch
from torch import nn

from amp_lab.scaling.scaler import LossScaler
from amp_lab.watching.recording.events import Saved, StateLoaded, StateTaken
from amp_lab.watching.recording.noting.tensors import tensors_in
from amp_lab.watching.recording.patches import defining
from amp_lab.watching.recording.recorder import Noting, Recorder

_DEEP: Final = 4
_PREFIXES: Final = ("module.", "_orig_mod.")
_SCALER: Final = {"scale", "growth_factor", "backoff_factor", "growth_interval"}
_SCHEDULER: Final = (
    {"last_epoch", "_step_count"},
    {"last_epoch", "_last_lr"},
    {"_schedulers", "_milestones"},
)


def install(recorder: Recorder) -> None:
    models: set[type] = {nn.Module, *(type(each) for each in recorder.models)}
    _install(recorder, "model", models, _Of("model"))
    kinds: set[type] = {torch.optim.Optimizer, *(type(each) for each in recorder.optimizers)}
    _install(recorder, "optimizer", kinds, _Of("optimizer"))
    recorder.around(torch, "save", "save", save)
    recorder.around(torch.serialization, "save", "save", save)


def _install(recorder: Recorder, what: str, kinds: set[type], of: _Of) -> None:
    for name, noting in (("state_dict", of.taken), ("load_state_dict", of.loaded)):
        for above in dict.fromkeys(above for kind in kinds for above in defining(kind, name)):
            recorder.around(above, name, f"{what}.{name}", noting)


class _Of:
    """Notes the states of models, or of optimizers."""

    def __init__(self, what: Literal["model", "optimizer"]) -> None:
        self._what = what

    def _index(self, recorder: Recorder, owner: Any) -> int | None:
        return recorder.known.models.get(owner) if self._what == "model" else recorder.optimizer(owner)

    def taken(self, recorder: Recorder, owner: Any, *args: Any, **kwargs: Any) -> Noting:
        index = self._index(recorder, owner)
        if index is None:
            return None

        def after(result: Any, error: BaseException | None) -> None:
            if error is None:
                recorder.emit(
                    StateTaken,
                    subject=(self._what, index),
                    of=self._what,
                    index=index,
                    state=recorder.states.all(),
                    empty=not result,
                )

        return after

    def loaded(self, recorder: Recorder, owner: Any, state: Any, *args: Any, **kwargs: Any) -> Noting:
        index = self._index(recorder, owner)
        if index is None:
            return None
        floats, empty = _floats(state), not state

        def after(result: Any, error: BaseException | None) -> None:
            missing, unexpected = (getattr(result, name, ()) for name in ("missing_keys", "unexpected_keys"))
            if self._what == "optimizer":
                recorder.read_again(index)
            recorder.emit(
                StateLoaded,
                subject=(self._what, index),
                of=self._what,
                index=index,
                empty=empty,
                floats=floats,
                missing=len(missing),
                unexpected=len(unexpected),
                raised=error is not None,
            )

        return after


def _floats(state: object) -> frozenset[torch.dtype]:
    return frozenset(each.dtype for each in tensors_in(state) if each.is_floating_point())


def save(recorder: Recorder, value: Any, *args: Any, **kwargs: Any) -> Noting:
    parts = list(_parts(recorder, value))

    def after(result: Any, error: BaseException | None) -> None:
        if error is not None or not parts:  # pickle saves tensors by torch.save, too
            return
        model = next((part for what, part in parts if what == "model"), None)
        state = model.state_dict() if isinstance(model, nn.Module) else model
        recorder.emit(
            Saved,
            has=frozenset(what for what, _ in parts),
            model_floats=_floats(state),
            model_prefix=_prefix(state),
            state=recorder.states.all(),
        )

    return after


def _parts(recorder: Recorder, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what is in a checkpoint, recognised by its content: the kind, and the part."""
    what = _kind(value)
    if what is not None:
        yield what, value
    elif depth < _DEEP:
        inner = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        )
        for each in inner:
            yield from _parts(recorder, each, depth + 1)


def _kind(value: Any) -> str | None:
    if isinstance(value, torch.optim.swa_utils.AveragedModel):
        return "averaged"
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, torch.amp.grad_scaler.GradScaler | LossScaler):
        return "scaler"
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return "scheduler"
    return _kind_of_state(value) if isinstance(value, Mapping) else None


def _kind_of_state(state: Mapping[Any, Any]) -> str | None:
    keys = {key for key in state if isinstance(key, str)}
    if {"state", "param_groups"} <= keys:
        return "optimizer"
    if keys >= _SCALER:
        return "scaler"
    if any(signs <= keys for signs in _SCHEDULER):
        return "scheduler"
    if keys and len(keys) == len(state) and all(isinstance(each, torch.Tensor) for each in state.values()):
        return "averaged" if "n_averaged" in keys else "model"
    return None


def _prefix(state: object) -> str:
    keys = list(state) if isinstance(state, Mapping) else []
    names = [key for key in keys if isinstance(key, str)]
    return next((each for each in _PREFIXES if names and all(name.startswith(each) for name in names)), "")
