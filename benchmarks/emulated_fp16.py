"""FP16 products emulated on a CPU, against FP32 and against PyTorch's own FP16 kernels, on one thread.

The step is that of lesson 04: forward, loss, backward and update of its denoiser on all 1,797 digits, FP16 by
`torch.autocast`. Emulation is forced with `always=True`, so this runs on any CPU. To see a CPU without half
arithmetic on one that has it:

    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python -m benchmarks emulated_fp16
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from amp_lab.autocast.emulate import tensor_cores
from amp_lab.train.data import noisy_digits
from amp_lab.train.measure import compare, one_thread
from amp_lab.train.models import denoiser
from benchmarks.finding import Finding, against

SIZE = 1024


def measure(quick: bool) -> list[Finding]:
    """Return the ratios; `quick` takes few rounds."""
    with one_thread():
        return [
            *_against_fp32("a training step", training_step, 1.4, rounds=3 if quick else 100),
            *_against_fp32(f"a {SIZE}³ product", product, 1.3, rounds=3 if quick else 100),
            # A CPU with fast products of its own may have slow convolutions, so only the step has a bar.
            *_against_own("a training step", training_step, 0.25, rounds=1 if quick else 5),
            *_against_own(f"a {SIZE}³ product", product, None, rounds=1 if quick else 5),
        ]


def training_step(dtype: torch.dtype) -> Callable[[], object]:
    """Return one training step of the denoiser, in FP32 or by autocast in FP16."""
    model, (noisy, clean) = denoiser(), noisy_digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=dtype == torch.float16):
            loss = F.mse_loss(model(noisy), clean)
        torch.autograd.backward(loss * 2.0**10)  # the learning rate is small enough for it
        optimizer.step()

    return step


def product(dtype: torch.dtype) -> Callable[[], object]:
    """Return one product of two square matrices of this dtype."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, generator=generator).to(dtype) for _ in range(2))
    return lambda: a @ b


def _against_fp32(
    what: str, make: Callable[[torch.dtype], Callable[[], object]], bar: float, rounds: int
) -> Iterator[Finding]:
    ways = {"FP32": make(torch.float32), "emulated FP16": make(torch.float16)}
    # On for both: it costs an FP32 call some microseconds of these milliseconds, switching it costs more.
    with tensor_cores(always=True):
        timings = compare(ways, baseline="FP32", rounds=rounds, warm_up=min(rounds, 10))
    print(timings)
    yield against(timings, "emulated FP16", f"{what}: emulated FP16 against FP32", bar)


def _against_own(
    what: str, make: Callable[[torch.dtype], Callable[[], object]], bar: float | None, rounds: int
) -> Iterator[Finding]:
    own, emulated = make(torch.float16), make(torch.float16)

    def switched_on() -> None:
        with tensor_cores(always=True):
            emulated()

    ways = {"own FP16": own, "emulated FP16": switched_on}
    timings = compare(ways, baseline="own FP16", rounds=rounds, warm_up=1)
    print(timings)
    yield against(timings, "emulated FP16", f"{what}: emulated FP16 against PyTorch's own FP16", bar)
