"""The state of a Trainer: what a checkpoint holds, and how a run goes on from it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from amp_lab.train.checkpoint import load_scaler, load_weights
from amp_lab.train.saving import random_states
from amp_lab.train.saving.positions import Batches, own_states, put_back
from amp_lab.train.training.redealing import dealt, parts_of, redealt, reseed

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer

_PARTS: Final = (
    "model",
    "loss_fn",
    "optimizer",
    "scaler",
    "schedule",
    "history",
    "step",
    "place",
    "random",
    "kinds",
)

_OTHERWISE: Final = (
    "make the Trainer as it was when it saved. To begin a new run from its weights alone: "
    'load_weights(model, load_checkpoint(path)["model"])'
)


class Place:
    """Where a run is in its data; between two calls of `fit` there are no loaders, and it is kept as a state."""

    def __init__(self) -> None:
        self._ranks = 1  # that read a loader together
        self._batches: Batches | None = None
        self._dev_loader: Any = None
        self._kept: Mapping[str, Any] | None = None
        self._loaded = False

    @property
    def running(self) -> bool:
        """Whether a `fit` is reading a loader."""
        return self._batches is not None

    def __getstate__(self) -> dict[str, Any]:
        """For `copy.deepcopy` and `pickle` in a callback, too: the place, without the loaders that are being read."""
        return {**vars(self), "_batches": None, "_dev_loader": None, "_kept": self.state_dict()}

    def enter(self, trainer: Trainer, train_loader: Iterable[Any], dev_loader: Any) -> Batches:
        """Return the batches of a loader, from this place on."""
        batches = Batches(train_loader)
        kept = self._kept
        if self._loaded and kept is not None and kept["train"] is not None:
            before = kept["train"].get("dealt", {}).get("ranks", 1)
            if before != trainer.ranks.size:
                kept = redealt(trainer, kept, before, train_loader)
        if kept is not None and kept["train"] is not None:
            if (
                kept["train"]["start"] is not None or self._loaded
            ):  # in the middle of an epoch, or from a file
                batches.load_state_dict(kept["train"])
            batches.epoch = kept["train"]["epoch"]  # between epochs, a loader may be another one
        if self._loaded and kept is not None and kept["dev"] is not None and dev_loader is not None:
            put_back(dev_loader, kept["dev"])
        self._batches, self._dev_loader, self._loaded = batches, dev_loader, False
        self._ranks = trainer.ranks.size
        return batches

    def leave(self, untaken: int) -> None:
        """Keep the place; so many of the batches that were read have not been trained on, and come again."""
        self._kept = self.state_dict(untaken)
        self._batches, self._dev_loader = None, None

    def state_dict(self, untaken: int = 0) -> dict[str, Any]:
        if self._batches is None:
            return dict(self._kept or {"train": None, "dev": None})
        dev = None if self._dev_loader is None else own_states(self._dev_loader)
        train = self._batches.state_dict(self._batches.taken - untaken)
        return {"train": {**train, "dealt": dealt(self._batches.loader, self._ranks)}, "dev": dev}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept, self._batches, self._dev_loader, self._loaded = state, None, None, True


def to_state(trainer: Trainer) -> dict[str, Any]:
    """Return all that a run needs to go on exactly."""
    loss_fn = trainer.loss_fn
    return {
        "kinds": _kinds(trainer),
        "model": trainer.model.state_dict(),
        "loss_fn": loss_fn.state_dict() if isinstance(loss_fn, nn.Module) else {},
        "optimizer": trainer.optimizer.state_dict(),
        "scaler": trainer.scaler.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        "history": trainer.history.state_dict(),
        "step": trainer.step,
        **_parts(trainer),
    }


def _parts(trainer: Trainer) -> dict[str, Any]:
    """Return what each rank has for itself: its place in its part of the data, and its random numbers.

    Rank 0's stand where those of a run of one process stand, too: either can go on from the other's checkpoint.
    """
    own = {
        "place": trainer.place.state_dict(),
        "random": random_states.capture(),
        **trainer.ranks.own_buffers(),
    }
    ranks = trainer.ranks.gather(own)
    return {**own, "ranks": ranks, "largest": trainer.together.largest} if len(ranks) > 1 else own


def from_state(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Go to where a state was taken.

    Raises:
        CheckpointError, ValueError: if it is that of another model, or of a Trainer made otherwise.
    """
    missing = [name for name in _PARTS if name not in state]
    if missing:
        raise ValueError(f"this is not the state of a Trainer: it has no {', '.join(map(repr, missing))}")
    trainer.schedule.check_state(state["schedule"])
    _check_made_alike(trainer, state)
    load_weights(trainer.model, state["model"])
    if isinstance(trainer.loss_fn, nn.Module):
        load_weights(trainer.loss_fn, state["loss_fn"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    with warnings.catch_warnings():
        if not trainer.ranks.first:  # all ranks would say the same
            warnings.simplefilter("ignore")
        load_scaler(trainer.scaler, state["scaler"])
    trainer.schedule.load_state_dict(state["schedule"])
    trainer.history.load_state_dict(state["history"])
    trainer.step = state["step"]
    parts, ranks = parts_of(state), trainer.ranks
    part = parts[ranks.rank % len(parts)]
    ranks.load_own_buffers(part)
    trainer.place.load_state_dict(part["place"])
    random_states.restore(part["random"])  # last: to build things above may take random numbers
    trainer.together.largest = state.get("largest", 0) if len(parts) == ranks.size else 0
    if ranks.rank >= len(parts):
        reseed(ranks.rank)


def _kinds(trainer: Trainer) -> dict[str, str]:
    """Return of what classes a Trainer is made, where PyTorch would load the state of another without a word."""
    return {"optimizer": type(trainer.optimizer).__name__, "scheduler": type(trainer.scheduler).__name__}


def _check_made_alike(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """ValueError, before anything is loaded, for the state of another optimizer or scheduler."""
    for part, kind in _kinds(trainer).items():
        if state["kinds"][part] != kind:
            raise ValueError(
                f"the checkpoint has the state of {state['kinds'][part]}, and this Trainer's {part} is {kind}: "
                + _OTHERWISE
            )
    saved, own = (_sizes(groups) for groups in (state["optimizer"], trainer.optimizer.state_dict()))
    if saved != own:
        raise ValueError(
            f"the checkpoint's optimizer has parameter groups of {saved} tensors, and this Trainer's of {own}: "
            + _OTHERWISE
        )


def _sizes(state: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in state["param_groups"]]
