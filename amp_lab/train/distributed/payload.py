"""Count what ranks send each other for their gradients.

    with count_payload(model) as payload:
        step(batch)
    payload.bytes, payload.calls     # (19240, 1)

What an all-reduce moves on the wire depends on the backend and the number of ranks; what it is given does not, and
that is counted here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.train.arguments import kind_of

# Where c10d's operators have the tensors that are sent. DDP calls the first; other people's hooks, some of the others.
_SENT: Final = {
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "reduce_": 0,
    "broadcast_": 0,
    "send": 0,
    "gather_": 1,
    "scatter_": 1,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_": 1,
    "alltoall_base_": 1,
}


@dataclass
class Payload:
    """What this rank gave to collectives for gradients.

    Attributes:
        bytes: of all buffers together.
        calls: how many collectives there were: one for each of DDP's buckets, or those that a hook makes instead.
    """

    bytes: int = 0
    calls: int = 0


@contextlib.contextmanager
def count_payload(model: DistributedDataParallel) -> Iterator[Payload]:
    """Count what is given to collectives in the backward passes of a block, with a communication hook or without.

    One step in the block gives the payload of a step. What is sent outside a backward pass does not count: a mean loss,
    buffers. For one rank alone to count is enough: nothing is sent for it. Operators run more slowly meanwhile.

    What else is sent in a backward pass counts, too: by other models in the block, by SyncBatchNorm. Not seen is what a
    hook starts in a callback that runs in another thread, as callbacks on gloo do.

    Args:
        model: wrapped, so that it has gradients to send.

    Yields:
        the counts, which grow as the block goes on.

    Raises:
        TypeError: if `model` is no DistributedDataParallel.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"count_payload({kind_of(model)}): only a DistributedDataParallel sends gradients: give "
            "DistributedDataParallel(model)"
        )
    payload = Payload()
    with _Counter(payload):
        yield payload


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that this thread calls; those of c10d are what `torch.distributed` and DDP itself call."""

    def __init__(self, payload: Payload) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._payload = payload

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name in _SENT and _in_backward():
            self._payload.calls += 1
            self._payload.bytes += sum(each.nbytes for each in _tensors(args[_SENT[name]]))
        return func(*args, **(kwargs or {}))


def _tensors(argument: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors of an argument, which may be one, a list, or a list of lists."""
    if isinstance(argument, torch.Tensor):
        yield argument
        return
    for each in argument:
        yield from _tensors(each)


def _in_backward() -> bool:
    """Tell whether this thread is in a backward pass. PyTorch has no public way to ask."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is None or current() != -1
