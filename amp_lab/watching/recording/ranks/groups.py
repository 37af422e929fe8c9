"""What is asked of process groups: who is in them, how long a rank waits there, and which errors are theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

# Functions of torch.distributed that return when all ranks of their group have called them.
COLLECTIVES: Final = (
    "all_reduce",
    "barrier",
    "monitored_barrier",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
)
# gloo's errors are plain RuntimeErrors. They begin with the place in its sources: "[…/gloo/transport/tcp/pair.cc:553]";
# a word such as "gloo" or "timed out" stands in other people's messages, too.
_TALK: Final = re.compile(
    r"\[[^\]\n]*\bgloo[/\\][^\]\n]*:\d+\]|\[Rank \d+\]: Ranks? .* failed to pass monitoredBarrier"
)
_UNKNOWN_TIMEOUT: Final = 600.0  # seconds: what PyTorch takes with NCCL; with gloo it is more


def ranks_of(group: Any) -> tuple[int, ...]:
    """Return the ranks of a group, by their numbers in the default group; of None, all."""
    return tuple(dist.get_process_group_ranks(group))


def group_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks of the group that a collective is called with; none where this rank is no member of it."""
    group = next((each for each in args if isinstance(each, dist.ProcessGroup)), kwargs.get("group"))
    return ranks_of(group) if group is None or isinstance(group, dist.ProcessGroup) else ()


def queues(device: torch.device) -> bool:
    """Return whether the host goes on before a collective with tensors of a device has ended, as NCCL's do."""
    return f"{device.type}:nccl" in str(dist.get_backend_config())


def timeout() -> float:
    """Return how many seconds a rank waits for others before PyTorch gives up; 600 where that cannot be asked."""
    try:
        group: Any = dist.group.WORLD
        cpu, serves = torch.device("cpu"), str(dist.get_backend_config())
        device = cpu if "cpu:" in serves else torch.device("cuda")
        return float(group._get_backend(device).options._timeout.total_seconds())
    except Exception:
        return _UNKNOWN_TIMEOUT


def is_about_talk(error: BaseException | None) -> bool:
    """Return whether an error, or what it was raised from, is one of the connection between ranks.

    Errors of this rank's own doing are not: a DataLoader that timed out, or a host of data that does not answer.
    """
    while error is not None:
        known = getattr(dist, "DistError", None)
        if known and isinstance(error, known):
            return True
        if type(error) is RuntimeError and _TALK.match(str(error)):
            return True
        error = error.__cause__
    return False
