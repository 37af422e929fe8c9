"""Lets a rank's notes see the calls that they are about. Nothing is installed where one process trains alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms import Join  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.distributed import DistributedSampler

from amp_lab.watching.recording.ranks.groups import COLLECTIVES
from amp_lab.watching.recording.ranks.this_rank import ThisRank

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder


def install(recorder: Recorder, rank: ThisRank) -> None:
    """Put the notes of this rank on."""
    put = recorder.put_around
    put(torch.autograd, "backward", rank.backward)
    put(DistributedDataParallel, "forward", functools.partial(_forward, rank))
    for name in COLLECTIVES:
        put(dist, name, functools.partial(_collective, rank, name))
    put(Join, "__enter__", functools.partial(_join, rank))
    put(DistributedSampler, "__iter__", functools.partial(_sampler, rank))
    recorder.on_stop(register_optimizer_step_post_hook(functools.partial(_stepped, recorder, rank)).remove)


def _forward(rank: ThisRank, call: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    return rank.forward(wrapper, call, *args, **kwargs)


def _collective(rank: ThisRank, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return rank.talks(name, call, *args, **kwargs)


def _join(rank: ThisRank, call: Callable[..., Any], *args: Any) -> Any:
    rank.joins()
    return call(*args)


def _sampler(rank: ThisRank, call: Callable[..., Any], sampler: Any) -> Any:
    rank.sampler_begins(sampler)
    return call(sampler)


def _stepped(recorder: Recorder, rank: ThisRank, optimizer: Any, args: Any, kwargs: Any) -> None:
    """An optimizer has stepped; what a scaler has asked for is told by the scaler."""
    if recorder.listening and recorder.here.asked is None and recorder.optimizer(optimizer) is not None:
        recorder.quietly("ranks", rank.stepped, recorder.steps.now)
