"""What DDP gives to all-reduce, with hooks and without."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.distributed.compression import compress_gradients
from amp_lab.train.distributed.payload import _SENT, count_payload
from amp_lab.train.distributed.workers import run_ranks

WIDTH = 200
ELEMENTS = 3 * (WIDTH * WIDTH + WIDTH)  # 482 kB in FP32: one bucket, if nothing is said of buckets


def wrapped(**settings):
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    return DistributedDataParallel(network, **settings)


def step(model):
    model(torch.ones(2, WIDTH)).sum().backward()


def counted(model, steps=1):
    """Return (bytes, calls) of so many steps, after a first one, in which DDP orders its buckets."""
    step(model)
    with count_payload(model) as payload:
        for _ in range(steps):
            step(model)
    return payload.bytes, payload.calls


def gathering(state, bucket):
    """Average a bucket by a hook that uses no all-reduce."""
    buffer = bucket.buffer()
    everyone = buffer.new_empty(dist.get_world_size() * len(buffer))
    dist.all_gather_into_tensor(everyone, buffer)
    future = torch.futures.Future()
    future.set_result(everyone.view(-1, len(buffer)).mean(0))
    return future


def with_hooks(rank):
    """Return (bytes, calls) of a step by the name of the hook, in one bucket and in several."""
    seen = {}
    for name, megabytes in (("one", None), ("several", 0.1)):
        for dtype in ("none", "fp16", "bf16"):
            model = wrapped(bucket_cap_mb=megabytes)
            compress_gradients(model, dtype)
            seen[name, dtype] = counted(model)
    model = wrapped()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    seen["torch's"] = counted(model)
    model = wrapped()
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    seen["built in"] = counted(model)
    model = wrapped()
    model.register_comm_hook(None, gathering)
    seen["gathering"] = counted(model)
    return seen


def test_bytes_and_calls_are_those_of_the_buckets_under_every_hook():
    for outcome in run_ranks(with_hooks, 2):
        assert outcome.ended == "returned", outcome.traceback
        seen = outcome.value
        whole, half = 4 * ELEMENTS, 2 * ELEMENTS
        assert seen["one", "none"] == seen["gathering"] == (whole, 1)
        assert seen["one", "fp16"] == (half + 4, 2)  # four bytes for the scale
        assert seen["one", "bf16"] == seen["torch's"] == seen["built in"] == (half, 1)
        buckets = seen["several", "none"][1]
        assert buckets > 1
        assert seen["several", "none"] == (whole, buckets)
        assert seen["several", "fp16"] == (half + 4 * buckets, 2 * buckets)
        assert seen["several", "bf16"] == (half, buckets)


def test_what_is_sent_stands_where_pytorch_s_operators_have_it():
    """Those that work in place have one argument of tensors; the others, what comes out and what goes in."""
    for name, place in _SENT.items():
        arguments = [each.name for each in getattr(torch.ops.c10d, name).default._schema.arguments]
        goes_in = [number for number, each in enumerate(arguments) if each.startswith("input")]
        assert goes_in[:1] == [place] if goes_in else arguments[place] == "tensors", name


def in_blocks(rank):
    """Return what counts of several steps, of accumulation, of one rank alone, and of what is no gradient."""
    model = wrapped()
    step(model)
    seen = {"three": counted(model, 3)}
    with count_payload(model) as payload:
        with model.no_sync():
            step(model)
            step(model)
        seen["no_sync"] = (payload.bytes, payload.calls)
        step(model)
    seen["then"] = (payload.bytes, payload.calls)
    with count_payload(model) as payload:
        dist.all_reduce(torch.ones(5))
        dist.broadcast(torch.ones(5), 0)
        dist.barrier()
        with torch.no_grad():
            model(torch.ones(2, WIDTH))
    seen["else"] = (payload.bytes, payload.calls)
    if rank:
        step(model)
    else:
        with count_payload(model) as payload:
            step(model)
        seen["alone"] = (payload.bytes, payload.calls)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with count_payload(model) as payload:
        model(torch.randn(3, 4)).sum().backward()
    seen["buffers"] = (payload.bytes, payload.calls)
    try:
        with count_payload(model.module):
            pass
    except TypeError as error:
        seen["refused"] = str(error)
    step(wrapped())  # nothing is left of the counting
    return seen


def test_a_block_counts_the_gradients_that_are_sent_in_it_and_nothing_else():
    first, second = run_ranks(in_blocks, 2)
    assert first.ended == second.ended == "returned", first.traceback + second.traceback
    assert first.value.pop("alone") == (4 * ELEMENTS, 1)
    assert first.value == second.value
    refused = first.value.pop("refused")
    assert "count_payload(a Sequential): only a DistributedDataParallel sends gradients" in refused
    assert first.value == {
        "three": (3 * 4 * ELEMENTS, 3),
        "no_sync": (0, 0),
        "then": (4 * ELEMENTS, 1),
        "else": (0, 0),
        "buffers": (4 * (16 + 4 + 4 + 4), 1),
    }
