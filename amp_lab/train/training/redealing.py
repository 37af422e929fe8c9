"""Going on with another number of ranks: what of an epoch is done, when its samples are dealt out anew.

A DistributedSampler has one order of all samples for an epoch, from its seed, and deals it out like cards: rank r of n
gets every n-th. So what n ranks have taken together, in batches of one size, is the beginning of that order, whatever n
is; and others can go on behind it.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, SequentialSampler

from amp_lab.train.saving.errors import CheckpointError
from amp_lab.train.saving.positions import length

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer


def parts_of(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what each rank had for itself; a run of one process has it at the top of its state."""
    return state.get("ranks") or [{"place": state["place"], "random": state["random"]}]


def reseed(rank: int) -> None:
    """Give a rank that was not there before random numbers of its own; it has those of another one."""
    seed = int(torch.randint(2**31, ())) + rank
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def dealt(loader: Any, ranks: int) -> dict[str, Any]:
    """Return in what parts a loader's batches are taken: so many samples of so many ranks at a time.

    A place counts batches of one rank, and only with this does it say how much of the epoch is done.
    """
    return {"ranks": ranks, "batch": getattr(loader, "batch_size", None), "order": order(loader)}


def order(loader: Any) -> dict[str, Any] | None:
    """Return what decides the order of an epoch's samples on all ranks together; None if that is not known."""
    sampler = getattr(loader, "sampler", None)
    if type(sampler) is DistributedSampler:
        seed = {"seed": sampler.seed} if sampler.shuffle else {}
        return {"samples": len(sampler.dataset), **seed}  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler:
        return {"samples": len(sampler)}
    return None


def redealt(trainer: Trainer, kept: Mapping[str, Any], before: int, loader: Any) -> dict[str, Any]:
    """Return the place in a loader at which so many other ranks than `before` go on.

    Raises:
        CheckpointError: "mismatch", in the middle of an epoch whose order is not known, or is another one.
    """
    place, now = kept["train"], dealt(loader, trainer.ranks.size)
    size, then = now["batch"], place.get("dealt") or {}
    if not place["taken"] or place["start"] is None:
        _warn_of_other_steps(trainer, before, size)
        return {**kept, "train": {**place, "taken": 0, "start": None, "length": length(loader)}}
    if size is None or then.get("batch") is None or now["order"] is None or then["order"] != now["order"]:
        raise CheckpointError(
            f"the checkpoint was saved in the middle of an epoch by {before} ranks, and {now['ranks']} are here: which "
            "samples are left is known only for the same data in the order of a DistributedSampler with the same seed "
            f"(num_replicas=1 for one process). Go on with {before} ranks, or from a checkpoint of an epoch's end",
            "mismatch",
        )
    _warn_of_other_steps(trainer, before, size)
    # Not the samples of the history: what came a second time is in there twice.
    done = min(place["taken"] * then["batch"] * before, now["order"]["samples"])
    taken, again = divmod(done, size * now["ranks"])
    if again and trainer.ranks.first:
        warnings.warn(
            f"{done:,} samples of this epoch are done, no whole batches of {size} on {now['ranks']} ranks: the last "
            f"{again:,} of them come a second time",
            stacklevel=2,
        )
    return {**kept, "train": {**place, "taken": taken, "length": length(loader), "loader": None}}


def _warn_of_other_steps(trainer: Trainer, before: int, size: int | None) -> None:
    """The learning rate was chosen for a number of samples to a step."""
    had = max((each.samples for each in trainer.history.steps), default=0)
    has = (size or 0) * trainer.accumulate * trainer.ranks.size
    if had and has and had != has and trainer.ranks.first:
        warnings.warn(
            f"a step had {had:,} samples on {before} ranks, and has {has:,} now: with accumulate or the batch size it "
            "can be what it was; else the learning rate may need a change",
            stacklevel=2,
        )
