"""CUDA's autocast emulated on a CPU: what it costs a step in FP32 to leave it on, and what it costs an autocast step.

On one thread; the denoiser's step is that of lesson 04, on all 1,797 digits. The FP32 steps run outside any autocast
region, with both emulations off or both on. The autocast steps have the same emulated Tensor Cores in both cases, and
PyTorch's policy for CPUs or CUDA's: it is not the same work, since CUDA's takes softmax and norms to FP32. What is on
is switched between the timed calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.train.measure import compare, one_thread
from benchmarks.emulated_fp16 import training_step
from benchmarks.finding import Finding, against

Step = Callable[[], object]


def measure(quick: bool) -> list[Finding]:
    """Return the ratios; `quick` takes few rounds."""
    rounds = 3 if quick else 100
    with one_thread():
        return [
            _left_on("the denoiser", training_step(torch.float32), rounds),
            _left_on("a transformer layer", transformer_step(torch.float32), rounds),
            _policies("the denoiser", training_step(torch.float16), 1.1, rounds),
            _policies("a transformer layer", transformer_step(torch.float16), 1.25, rounds),
        ]


def transformer_step(dtype: torch.dtype) -> Step:
    """Return one training step of a transformer layer (d = 256, 4 × 64 tokens), in FP32 or by autocast in FP16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        tokens, targets = torch.randn(4, 64, 256), torch.randn(4, 64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=dtype == torch.float16):
            loss = F.mse_loss(model(tokens), targets)
        torch.autograd.backward(loss * 2.0**10)
        optimizer.step()

    return step


def _left_on(what: str, step: Step, rounds: int) -> Finding:
    """How much longer an FP32 step takes while both emulations are on."""
    with ExitStack() as on:

        def switch(way: str) -> None:
            on.close()
            if way == "both on":
                on.enter_context(cuda_autocast())
                on.enter_context(tensor_cores(always=True))
            step()  # what switching leaves in the processor's caches is no cost of leaving it on

        ways = {"both off": step, "both on": step}
        timings = compare(ways, baseline="both off", rounds=rounds, warm_up=3, prepare=switch)
    print(timings)
    return against(timings, "both on", f"an FP32 step of {what}: emulations left on against off", 1.05)


def _policies(what: str, step: Step, bar: float, rounds: int) -> Finding:
    """How much longer an autocast step takes by CUDA's policy than by PyTorch's for CPUs."""
    with tensor_cores(always=True), ExitStack() as on:

        def switch(way: str) -> None:
            on.close()
            if way == "CUDA's policy":
                on.enter_context(cuda_autocast())
            step()

        ways = {"policy for CPUs": step, "CUDA's policy": step}
        timings = compare(ways, baseline="policy for CPUs", rounds=rounds, warm_up=3, prepare=switch)
    print(timings)
    return against(
        timings, "CUDA's policy", f"an FP16 step of {what}: CUDA's policy against that for CPUs", bar
    )
