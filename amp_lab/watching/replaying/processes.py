"""One process of several runs a batch again by itself: nothing it does may wait for the others, who know nothing of it.

What waits are the layers that wrap a model for several processes or GPUs, and a batch normalisation that averages over
all of them. They are put aside for the while; whatever else calls a collective operation is refused, with a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
_BY_ITSELF = (
    "SyncBatchNorm averages over all processes: here it took the numbers of this one alone, the only one to run its "
    "batch again"
)


class OtherProcessesError(RuntimeError):
    """The model exchanges numbers with other processes, which would have to run the batch again, too."""

    def __init__(self, call: str):
        super().__init__(
            f"the model calls {call}, which waits for the other processes: a batch is run again in one process alone. "
            "Give a model that is whole in this process: DistributedDataParallel and SyncBatchNorm may stay; of "
            "fully_shard, FSDP or tensor parallelism load the full state dict into a plain copy, and leave averages "
            "over processes (all_reduce, all_gather) out of the loss"
        )


@contextlib.contextmanager
def by_itself() -> Iterator[list[str]]:
    """Let models run without other processes and GPUs, for a while; yield a list of notes of what that has changed.

    Classes are changed, not modules: a closure may call the wrapper of a model that was given without it.

    Raises:
        OtherProcessesError: inside, by whatever would wait for other processes.
    """
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        _replaced(stack, DistributedDataParallel, _unwrapped)
        _replaced(stack, DataParallel, _unwrapped)
        if _several_processes():
            _replaced(stack, nn.SyncBatchNorm, _not_averaged(notes))
            stack.enter_context(_NoCollectives())
        yield notes


def _replaced(stack: contextlib.ExitStack, owner: type[nn.Module], forward: Callable[..., Any]) -> None:
    stack.callback(setattr, owner, "forward", owner.forward)
    owner.forward = forward


def _several_processes() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _unwrapped(
    wrapper: DistributedDataParallel | DataParallel[nn.Module], *inputs: Any, **keywords: Any
) -> Any:
    """Call the module inside, with its inputs on the GPU that the wrapper moves them to."""
    if wrapper.device_ids:
        gpu = torch.device("cuda", wrapper.device_ids[0])
        inputs, keywords = tree_map_only(torch.Tensor, lambda each: each.to(gpu), (inputs, keywords))
    return wrapper.module(*inputs, **keywords)


def _not_averaged(notes: list[str]) -> Callable[..., Any]:
    def forward(part: nn.SyncBatchNorm, x: torch.Tensor) -> torch.Tensor:
        if part.training and _BY_ITSELF not in notes:
            notes.append(_BY_ITSELF)
        return _BatchNorm.forward(part, x)

    return forward


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses the operators by which processes exchange numbers, before any of them waits."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace in _COLLECTIVES:
            raise OtherProcessesError(f"{func.namespace}.{func._schema.name.split('::')[-1].rstrip('_')}")
        return func(*args, **(kwargs or {}))
