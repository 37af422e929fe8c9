"""What DDP gives to all-reduce for the gradients of a step: FP32 as it is, and compressed to FP16 and to BF16.

Counted, not timed, by `amp_lab.train.distributed.payload.count_payload` on a rank of two, for the model of the DDP
script, which fits into one bucket, and for eight layers of 1,024 × 1,024, which do not. FP16 takes four bytes more for
each bucket than half: the ranks agree on a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.distributed.compression import compress_gradients
from amp_lab.train.distributed.payload import Payload, count_payload
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.models import digit_classifier
from benchmarks.finding import Finding

RANKS = 2
DTYPES = ("none", "fp16", "bf16")
BARS = {"fp16": 0.501, "bf16": 0.5}


def wide() -> nn.Module:
    """Return eight layers of 1,024 × 1,024."""
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "the script's model": (digit_classifier, 64),
    "8 layers of 1,024": (wide, 1024),
}


def measure(quick: bool) -> list[Finding]:
    """Return bytes, collectives and ratios of a step for both models; counted is counted: `quick` changes nothing."""
    outcomes = run_ranks(counts_of_one_rank, RANKS)
    for each in outcomes:
        if each.ended != "returned":
            raise SystemExit(f"rank {each.rank} {each.ended}: {each.error}\n{each.traceback}")
    first, *others = (each.value for each in outcomes)
    if any(other != first for other in others):
        raise AssertionError(f"ranks give different payloads: {[first, *others]}")
    return [finding for model, counts in first.items() for finding in findings(model, counts)]


def counts_of_one_rank(rank: int) -> dict[str, dict[str, Payload]]:
    """Return the payload of a step by model and dtype, as this rank gives it to all-reduce."""
    return {
        name: {dtype: _payload(make(), width, dtype) for dtype in DTYPES}
        for name, (make, width) in MODELS.items()
    }


def _payload(network: nn.Module, width: int, dtype: str) -> Payload:
    model, inputs = DistributedDataParallel(network), torch.ones(2, width)
    compress_gradients(model, dtype)
    for _ in range(2):  # after the first step, DDP sorts its buckets anew
        with count_payload(model) as payload:
            torch.autograd.backward(model(inputs).sum())
    return payload


def findings(model: str, counts: dict[str, Payload]) -> Iterator[Finding]:
    """Yield the bytes of a step in FP32, and what is left of them."""
    whole = counts["none"]
    yield Finding(f"gradients of {model}: given to all-reduce in a step, FP32", whole.bytes, unit="bytes")
    for dtype, bar in BARS.items():
        sent = counts[dtype]
        print(f"  {model}, {dtype}: {sent.bytes:,} bytes in {sent.calls} calls; FP32 in {whole.calls}")
        yield Finding(f"gradients of {model}: {dtype.upper()} ÷ FP32, bytes", sent.bytes / whole.bytes, bar)
