"""What the ranks of a run must have alike: compared before the first step, as nobody would notice later.

DDP averages gradients. What is made of them is each rank's own business: with another optimizer, or another schedule,
every rank trains another model, without an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DistributedSampler

from amp_lab.train.distributed.failures import RanksDiffer
from amp_lab.train.distributed.ranks import Ranks, differ
from amp_lab.train.saving.positions import length

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer

_DEALING: Final = ("num_replicas", "shuffle", "seed", "drop_last")
_ROUNDING: Final = 1e-6  # of a weight's norm: GPUs of two kinds may round differently


def check_alike(trainer: Trainer, train_loader: Any, dev_loader: Any, epochs: int, resume: Any) -> None:
    """Refuse ranks that would not make the same steps: they wait for each other for ever, or drift apart.

    Raises:
        RanksDiffer: on all ranks alike.
    """
    if trainer.ranks.size == 1:
        return
    asked = {
        "the number of batches in train_loader (a DistributedSampler deals out equal parts)": length(
            train_loader
        ),
        "the DistributedSampler of train_loader": _dealing(train_loader),
        "epochs": epochs,
        "resume": resume if isinstance(resume, bool) else str(resume),
        "whether there is a dev_loader": dev_loader is not None,
        **_settings(trainer),
        **_optimizer(trainer),
        **_schedule(trainer),
        "how many steps are done": trainer.step,
        "how many epochs are done": trainer.epoch,
    }
    everybodys = trainer.ranks.gather(asked)
    for what in asked:
        values = [theirs.get(what) for theirs in everybodys]
        if any(value != values[0] for value in values):
            raise differ(what, values)
    check_weights(trainer)


def check_dealing(ranks: Ranks, loader: Any) -> None:
    """Refuse a sampler that deals out to others than those who train: samples would be left out, or come twice."""
    sampler = getattr(loader, "sampler", None)
    if ranks.size == 1 or not isinstance(sampler, DistributedSampler):
        return
    if (sampler.num_replicas, sampler.rank) != (ranks.size, ranks.rank):
        raise ValueError(
            f"the DistributedSampler of train_loader deals out to rank {sampler.rank} of {sampler.num_replicas}, and "
            f"this is rank {ranks.rank} of {ranks.size}: make it with num_replicas={ranks.size}, rank={ranks.rank}, "
            "or without both, which takes those of the process group"
        )


def _settings(trainer: Trainer) -> dict[str, Any]:
    scaler = trainer.scaler.state_dict()
    return {
        "accumulate": trainer.accumulate,
        "precision": trainer.precision,
        "clip_norm": trainer.clip_norm,
        "on_nonfinite": trainer.on_nonfinite,
        "seed (Trainer adds the rank to it)": trainer.seed,
        "the names of metrics": list(trainer.metrics),
        "whether there are checkpoints": trainer.checkpoints is not None,
        "the steps between checkpoints": getattr(trainer.checkpoints, "every", None),
        "the loss scale": trainer.scaler.get_scale(),
        **{f"{name} of the scaler": _plain(value) for name, value in scaler.items()},
        **{f"{name} of DistributedDataParallel": each for name, each in trainer.ranks.settings().items()},
    }


def _optimizer(trainer: Trainer) -> dict[str, Any]:
    """Return its class, and of each group the settings and the names of its parameters."""
    names = {id(each): name for part in trainer.modules() for name, each in part.named_parameters()}
    groups = trainer.optimizer.param_groups
    told = {
        "the optimizer": type(trainer.optimizer).__name__,
        "the number of parameter groups of the optimizer": len(groups),
    }
    for number, group in enumerate(groups):
        where = f", group {number}" if len(groups) > 1 else ""
        for name, value in group.items():
            held = [names.get(id(each)) for each in value] if name == "params" else _plain(value)
            told[f"{name} of the optimizer{where}"] = held
    return told


def _schedule(trainer: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = getattr(trainer.scheduler, "state_dict", dict)()
    return {
        "the scheduler": type(trainer.scheduler).__name__,
        "scheduler_every": trainer.schedule.every,
        **{f"{name} of the scheduler": _plain(value) for name, value in state.items()},
    }


def _dealing(loader: Any) -> dict[str, Any] | None:
    """Return what decides which samples a rank gets; None where that is not known."""
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        return None
    told = {name: getattr(sampler, name, None) for name in _DEALING}
    return {"samples": len(sampler.dataset), "batch_size": loader.batch_size, **told}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Return what can be compared with `!=`: of other objects, such as functions, only what they are."""
    if isinstance(value, torch.Tensor):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | int | float | str | None):
        return value if value == value else "nan"  # NaN is not equal to itself
    return type(value).__name__


def check_weights(trainer: Trainer) -> None:
    """Refuse to go on with replicas that differ: in the sum or the norm of a weight, by more than rounding can do.

    Raises:
        RanksDiffer: on all ranks alike.
    """
    if trainer.ranks.size == 1:
        return
    first, *others = trainer.ranks.gather(_sums(trainer))
    for rank, theirs in enumerate(others, 1):
        other = next((name for name in theirs if _differ(theirs[name], first.get(name))), None)
        if other is not None:
            raise RanksDiffer(
                f"the weight {other!r} is another one on rank {rank} than on rank 0. DistributedDataParallel copies "
                "rank 0's when it is made, and averages the gradients of what was trained then: load weights, "
                "unfreeze layers and add them before, or wrap the model anew; and change weights on all ranks alike"
            )


def _sums(trainer: Trainer) -> dict[str, tuple[float, float]]:
    """Return of each weight that DDP looks after the sum of its elements and their norm, in FP64."""
    model = trainer.ranks.model_inside(trainer.model)
    own = getattr(model, "_ddp_params_and_buffers_to_ignore", ())  # each rank's own, by the model's wish
    weights = {name: each.detach() for name, each in model.named_parameters() if name not in own}
    return {
        name: (
            float(each.sum(dtype=torch.float64)),
            float(torch.linalg.vector_norm(each, dtype=torch.float64)),
        )
        for name, each in weights.items()
        if each.is_floating_point()
    }


def _differ(mine: tuple[float, float], theirs: tuple[float, float] | None) -> bool:
    """Compare sums and norms: the last layer under cross-entropy changes without its sum. NaN on both is explained
    elsewhere."""
    norm = mine[1]
    return theirs is None or not all(
        one == other or abs(one - other) <= _ROUNDING * norm or (math.isnan(one) and math.isnan(other))
        for one, other in zip(mine, theirs, strict=True)
    )
