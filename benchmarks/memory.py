"""`memory_account` against an independent count of the same training step, on models of more than 200 MB.

On a CPU PyTorch's profiler counts: it is told of each allocation and each release. On a GPU it is
`torch.cuda.memory_allocated`; the workspaces of cuBLAS, which stay once they are there, are made before it begins. Both
know nothing of categories, only how much there is: when the model and its batch have been made, after forward, after
backward, and after the optimizer's first step. Each number here is the larger of the two counts over the smaller one.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.train.measure import memory_account
from benchmarks.finding import Finding

BAR = 1.02
LEAST = 200e6
MOMENTS = ("model and batch", "after forward", "after backward", "after the step")
Loss = Callable[[Any, torch.Tensor], torch.Tensor]
PRECISIONS = {"FP32": None, "FP16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A model to be trained. `model` and `batch` make new ones, on a device."""

    model: Callable[[str], nn.Module]
    batch: Callable[[str], tuple[torch.Tensor, torch.Tensor]]
    loss: Loss
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]


def measure(quick: bool) -> list[Finding]:
    """Return the ratios for two models in three precisions (`quick`: small ones)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = {"transformer": transformer(64, 1), "convolutions": convolutions(8, 8)}
    if not quick:
        cases = {"transformer": transformer(1024, 4), "convolutions": convolutions(64, 80)}
    return [
        _worst(f"{name}, {precision}", case, device, dtype, quick)
        for name, case in cases.items()
        for precision, dtype in PRECISIONS.items()
    ]


def transformer(width: int, layers: int) -> Case:
    """Return two encoder layers or more, trained with AdamW; 4 layers of width 1,024 have 202 MB of weights."""

    def model(device: str) -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, batch_first=True, device=device
        )
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(2, 32, width, device=device), torch.randn(2, 32, width, device=device)

    return Case(
        model, batch, nn.functional.mse_loss, lambda made: torch.optim.AdamW(made.parameters(), lr=1e-4)
    )


def convolutions(channels: int, size: int) -> Case:
    """Return convolutions with BatchNorm and ReLU in place; of 64 channels and 80 × 80 pixels they keep over 200 MB."""

    def block(inputs: int, device: str) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, channels, 3, padding=1, bias=False, device=device)
        return [convolution, nn.BatchNorm2d(channels, device=device), nn.ReLU(inplace=True)]

    def model(device: str) -> nn.Module:
        blocks = [each for inputs in (3, *4 * (channels,)) for each in block(inputs, device)]
        return nn.Sequential(
            *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10, device=device)
        )

    def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(32, 3, size, size, device=device), torch.randint(0, 10, (32,), device=device)

    def optimizer(made: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)

    return Case(model, batch, nn.functional.cross_entropy, optimizer)


def _worst(name: str, case: Case, device: str, dtype: torch.dtype | None, quick: bool) -> Finding:
    """Return how far the counts lie apart at the moment at which they do most."""
    ours, theirs = accounted(case, device, dtype), counted(case, device, dtype)
    if not quick and max(theirs) < LEAST:
        raise AssertionError(f"{name} takes {max(theirs) / 1e6:.0f} MB only, which is too little to say much")
    ratios = {each: max(a, b) / min(a, b) for each, a, b in zip(MOMENTS, ours, theirs, strict=True)}
    for each, a, b in zip(MOMENTS, ours, theirs, strict=True):
        print(f"  {name:24} {each:16} {a:14,} bytes by account {b:14,} by the other count")
    moment = max(ratios, key=lambda each: ratios[each])
    return Finding(f"memory_account against an independent count, {name}, {moment}", ratios[moment], BAR)


def accounted(case: Case, device: str, dtype: torch.dtype | None) -> list[int]:
    """Return the bytes at each moment of a first step, by `memory_account`; CUDA's casts everywhere."""
    model, batch = _new(case, device)
    optimizer = case.optimizer(model)
    account = memory_account(model, case.loss, batch, optimizer=optimizer, dtype=dtype, device_type="cuda")
    state = account.optimizer_state
    first = account.weights + account.buffers + account.inputs
    return [first, account.after_forward - state, account.after_backward - state, account.after_backward]


def counted(case: Case, device: str, dtype: torch.dtype | None) -> list[int]:
    """Return the bytes at each moment of a first step, by the profiler or by CUDA's allocator."""
    book = _Allocated(case, dtype) if device == "cuda" else _Profiled()
    casts = contextlib.nullcontext() if device == "cuda" or dtype is None else _emulated()
    with casts:
        with book.open():
            model, batch = _new(case, device)
            optimizer = case.optimizer(model)
        moments = [book.bytes]
        with book.open(), _autocast(device, dtype):
            output = model(batch[0])
            loss = case.loss(output, batch[1])
        moments.append(book.bytes)
        with book.open():
            loss.backward()  # type: ignore[no-untyped-call]
        moments.append(book.bytes)
        with book.open():
            optimizer.step()
        moments.append(book.bytes)
    return moments


def _new(case: Case, device: str) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return case.model(device), case.batch(device)


def _autocast(device: str, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None)


@contextlib.contextmanager
def _emulated() -> Iterator[None]:
    with cuda_autocast(), tensor_cores():
        yield


class _Profiled:
    """Bytes that are allocated and not released, by PyTorch's profiler, since the first time that it was opened."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            yield
        self.bytes += sum(event.self_cpu_memory_usage for event in run.events() or [])


class _Allocated:
    """Bytes that are allocated, by CUDA's allocator, without those that were there before, workspaces among them."""

    def __init__(self, case: Case, dtype: torch.dtype | None) -> None:
        self._prepare(case, dtype)
        gc.collect()
        self._before = torch.cuda.memory_allocated()

    @property
    def bytes(self) -> int:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - self._before

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        yield

    @staticmethod
    def _prepare(case: Case, dtype: torch.dtype | None) -> None:
        """Make a whole step on another model: cuBLAS makes its workspaces, for each thread, and keeps them."""
        model, batch = _new(case, "cuda")
        with _autocast("cuda", dtype):
            loss = case.loss(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
