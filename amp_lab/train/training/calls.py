"""How a Trainer cannot be called, with what to do instead: refused before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from amp_lab.train.arguments import is_whole, kind_of
from amp_lab.train.saving.positions import length
from amp_lab.watching.recording.random_numbers import has_dropout

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer


def check_loader(name: str, loader: Any, epochs: int, may_be_empty: bool = False) -> None:
    """Refuse what gives no batches, or gives them only once though they are needed in each epoch."""
    if isinstance(loader, torch.utils.data.Dataset) and not isinstance(
        loader, torch.utils.data.IterableDataset
    ):
        raise TypeError(
            f"{name} is a data set, which gives samples: wrap it, DataLoader({name}, batch_size=32)"
        )
    if isinstance(loader, torch.Tensor | str | Mapping) or not isinstance(loader, Iterable):
        raise TypeError(
            f"{name} gives batches when iterated, as a DataLoader or a list of them does; it is {kind_of(loader)}"
        )
    if length(loader) == 0 and not may_be_empty:
        raise ValueError(
            f"{name} is empty: its data set has no samples, or less than one batch with drop_last=True"
        )
    if epochs > 1 and _is_read_once(loader):
        raise TypeError(
            f"{name} is {kind_of(loader)}, which can be read once, and there are {epochs:,} epochs: give a DataLoader, "
            "or a list of its batches"
        )


def check_fit(epochs: Any, resume: Any, checkpoints: Any) -> None:
    """Refuse a number of epochs that is none, and to go on from nowhere."""
    if not is_whole(epochs) or epochs < 1:
        raise ValueError(f"epochs={epochs!r}: how many epochs in all, a whole number from 1 on")
    if not isinstance(resume, bool | str | PathLike):
        raise TypeError(f"resume is True, False or the path of a checkpoint, not {kind_of(resume)}")
    if resume is True and checkpoints is None:
        raise ValueError(
            "resume=True needs a folder to resume from: Trainer(..., checkpoints=Checkpoints('runs/a'))"
        )


def warn_of_same_masks(trainer: Trainer) -> None:
    """Warn where all ranks would leave out the same units: the usual result of one `torch.manual_seed` for all."""
    drops = has_dropout(trainer.model)
    states = trainer.ranks.gather((torch.initial_seed(), torch.get_rng_state().tolist()) if drops else None)
    if drops and len(states) > 1 and all(state == states[0] for state in states) and trainer.ranks.first:
        warnings.warn(
            "all ranks draw the same random numbers, so dropout leaves out the same units on each of them: after the "
            "model is made, torch.manual_seed(seed + rank), or Trainer(..., seed=...), which does that",
            stacklevel=4,
        )


def check_idle(running: bool) -> None:
    """Refuse to begin a `fit`, or to load a state, inside of one."""
    if running:
        raise RuntimeError(
            "this Trainer's fit is running: let it end first (trainer.stop() in a callback ends it after the step); a "
            "callback may call train_step, evaluate and save"
        )


def check_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """Refuse to go on if nothing that the optimizer trains got a gradient."""
    if all(each.grad is None for each in parameters):
        raise ValueError(
            "no parameter of the optimizer got a gradient: the loss does not depend on any of them. Is the optimizer "
            "made of the wrong part of the model, or is there a .detach() behind that part?"
        )


def check_window(window: Any) -> None:
    """Refuse what is no list of micro-batches."""
    if not isinstance(window, list) or not window:
        raise TypeError(
            f"a window is the list of the micro-batches of one step, [(inputs, target)], not {kind_of(window)}"
            + (" without any" if isinstance(window, list) else "")
        )
    if isinstance(window[0], torch.Tensor):
        raise TypeError(
            "a window is a list of micro-batches, and this is one batch: write train_step([batch])"
        )


def check_surroundings(device: torch.device) -> None:
    """Refuse regions around `fit` or `train_step` in which no right step can be made."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "fit is called in torch.inference_mode(), where nothing can be trained: call it outside"
        )
    check_no_region(device)


def check_no_region(device: torch.device) -> None:
    """Refuse an autocast region around: it would keep cast weights until it ends, steps or no steps."""
    if torch.is_autocast_enabled(device.type):
        raise RuntimeError(
            "Trainer is called in an autocast region, which keeps cast weights until it ends, steps or no steps: call "
            "it outside; Trainer makes its own region for each forward pass"
        )


def _is_read_once(loader: Any) -> bool:
    """Tell a generator, or another iterator, which is used up by being read."""
    return hasattr(loader, "__next__")
