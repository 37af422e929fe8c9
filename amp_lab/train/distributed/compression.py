"""Send gradients between ranks in 16 bits instead of 32: half the bytes, and a known error.

    model = DistributedDataParallel(network)
    compress_gradients(model, "bf16")

Under DDP with autocast, gradients are FP32, and so is what goes over the wire. Only a communication hook changes that:
DDP calls it with each bucket of gradients that is ready, and it returns a future of their mean over the ranks.

BF16 has the range of FP32. FP16 has not, and a cast alone is a trap: a loss scale of 65,536 takes gradients beyond
65,504, and the cast makes them infinite; small ones become 0; and without a loss scale nobody looks. So for FP16 the
ranks first agree on a power of two, a scale for this bucket in this step. That costs four bytes more.
"""

# Without `from __future__ import annotations`: DDP compares the annotations of a hook with types.
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.arguments import kind_of
from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.failures import is_about_others
from amp_lab.train.distributed.several import ranks_of
from amp_lab.train.precision import DTYPES

_Future = torch.futures.Future[Any]

# What is sent in FP16, and every sum of it, is at most this: FP16 ends at 65,504.
_HIGHEST: Final = 2.0**15
# Smaller buckets get no larger scale, which would not fit into FP32. What is lost is as small as FP32's smallest.
_LOWEST: Final = 2.0**-112


def compress_gradients(model: DistributedDataParallel, dtype: str = "fp16") -> None:
    """Let DDP average its gradients in FP16 or BF16. Call it on every rank, once, before the first backward pass.

    The gradients in `.grad` stay FP32, and are the same on all ranks in every bit. With n ranks, the error of an
    element is about n·u times the mean of its absolute values on the ranks, at most; u is 2**-11 for "fp16" and 2**-8
    for "bf16". With "fp16" comes up to n·2**-38 times the largest element of the bucket on any rank: it is felt by
    elements that are more than 2**27 / n times smaller than that one.

    An infinity or NaN on one rank is there on all afterwards, in the same place: every rank's scaler skips the step.
    No finite value below 2**127 becomes infinite. With "fp16", the other elements of a bucket that has an infinity or
    NaN become 0, unless they are beyond 2**88.

    The hook is no part of the model's state: a copy of the model, or a pickled one, has none until it gets its own.
    Parameters that are 16 bits wide are exchanged as they are.

    Args:
        model: the wrapped model, in a group of any size.
        dtype: "fp16", "bf16" or "none", which leaves everything as it is.

    Raises:
        TypeError: if `model` is no DistributedDataParallel.
        ValueError: for another dtype.
        LaunchError: if the backend cannot add such numbers.
        RuntimeError: if DDP has a hook already.
        RanksDiffer: if ranks do not ask for the same.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"compress_gradients({kind_of(model)}): gradients travel only in a DistributedDataParallel: wrap the model "
            "first, compress_gradients(DistributedDataParallel(model)); compile it after that"
        )
    if dtype not in (*DTYPES, "none"):
        raise ValueError(f"compress_gradients(dtype={dtype!r}): it is one of 'fp16', 'bf16' or 'none'")
    device = next(model.parameters()).device
    ranks_of(model, device).agree("dtype of compress_gradients", dtype)
    if dtype == "none":
        return
    _try(dtype, model, device)
    try:
        model.register_comm_hook(_State(model.process_group), _fp16 if dtype == "fp16" else _bf16)
    except RuntimeError as error:
        if "only be called once" not in str(error):
            raise
        raise RuntimeError(
            "compress_gradients: this DistributedDataParallel has a communication hook already, and takes one only: "
            "wrap the model anew to change it"
        ) from error


class _State:
    """What DDP hands to a hook. A process group cannot be copied: the copy of a model has an empty state."""

    def __init__(self, group: Any = None) -> None:
        self.group = group

    def __reduce__(self) -> tuple[Any, ...]:
        return _State, ()


def _try(dtype: str, model: DistributedDataParallel, device: torch.device) -> None:
    """Add a number of this dtype over all ranks: the error is easier to understand than one in a backward pass."""
    try:
        dist.all_reduce(torch.zeros(1, dtype=DTYPES[dtype], device=device), group=model.process_group)
    except (RuntimeError, TypeError) as error:
        if is_about_others(error):
            raise
        backend = dist.get_backend_config(model.process_group)
        raise LaunchError(
            f'compress_gradients(dtype="{dtype}"): the backend {backend} does not add such numbers on {device}: take '
            f'the other of "fp16" and "bf16", or "none" ({error})'
        ) from error


def _bf16(state: _State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket in BF16. Divided first, so that no sum is larger than the largest element."""
    buffer = bucket.buffer()
    if buffer.itemsize <= 2 or not buffer.numel():
        return allreduce_hook(state.group, bucket)
    sent = buffer.div_(state.group.size()).to(torch.bfloat16)
    return _sum(sent, state.group).then(lambda arrived: buffer.copy_(arrived.value()[0]))


def _fp16(state: _State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket in FP16, under a scale that all ranks compute from the largest element on any of them."""
    buffer: torch.Tensor = bucket.buffer()
    if buffer.itemsize <= 2 or not buffer.numel():
        return allreduce_hook(state.group, bucket)
    ranks, largest = state.group.size(), _largest(buffer)
    agreed = _sum(largest, state.group, dist.ReduceOp.MAX)

    def send() -> _Future:
        return _sum(buffer.mul_(_scale(largest, ranks)).to(torch.float16), state.group)

    def receive(arrived: _Future) -> torch.Tensor:
        return buffer.copy_(arrived.value()[0]).div_(_scale(largest, ranks) * ranks)

    def send_and_receive(_: _Future) -> torch.Tensor:
        arrived = send()
        arrived.wait()
        return receive(arrived)

    if buffer.is_cuda and agreed.done():
        # NCCL: it is in the GPU's queue. The callback runs now, and puts the rest there: the backward pass goes on.
        return agreed.then(send_and_receive)
    # All ranks must start collectives in one order. In a callback, gloo's threads would decide on it: wait for 4 bytes.
    agreed.wait()
    return send().then(receive)


def _sum(tensor: torch.Tensor, group: Any, operation: Any = dist.ReduceOp.SUM) -> _Future:
    """Start to add a tensor over all ranks, in place."""
    work: Any = dist.all_reduce(tensor, operation, group=group, async_op=True)
    future: _Future = work.get_future()
    return future


def _largest(buffer: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value, () of the same dtype: the largest there is for infinity and NaN."""
    low, high = torch.aminmax(buffer)  # on a CPU, 30 times as fast as the norm that says the same
    return torch.maximum(-low, high).nan_to_num(nan=torch.finfo(buffer.dtype).max)


def _scale(largest: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the power of two under which values up to `largest`, added over all ranks, stay within FP16."""
    largest = largest.clamp(min=_LOWEST)
    mantissa, _ = torch.frexp(largest)  # from 1/2 to 1
    power = largest / (2 * mantissa)  # of two, exactly: the last one that is not above `largest`
    return _HIGHEST / 2 / _next_power(ranks) / power


def _next_power(ranks: int) -> int:
    """Return the first power of two that is not below a number."""
    return 1 << (ranks - 1).bit_length()
