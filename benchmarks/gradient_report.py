"""`gradient_report` over 20 million gradients: extra memory, and seconds against one `torch.histc` pass over the same.

`torch.histc` looks for the ends of its tensor and counts once, at one scale and without ties, zeros, or what is not
finite. The gradients are those of a transformer's layers by shape, spread over 60 powers of two.

The same gradients are counted a second time as `channels_last` images and every other column of a matrix, which lie in
memory in another order or with gaps: nothing may copy them whole.
"""

from __future__ import annotations

import subprocess
import sys

import torch

from amp_lab.train.measure import compare
from amp_lab.watching.gradients import gradient_report
from benchmarks.finding import Finding, against

ROWS = 1024
# 18 matrices of 1024 × 1024, and for each some vectors: 20 million in all.
SHAPES = [(ROWS, ROWS)] * 18 + [(4 * ROWS, 260)] + [(ROWS,)] * 54
SLOWER = 4.0  # "a few times" one pass of histc
EXTRA_MIB = 16.0

_MEMORY = """
import sys, torch
from benchmarks.gradient_report import gradients, in_other_orders, gradient_report
def kib(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
torch.set_num_threads(1)
gradient_report(torch.ones(10).double())
grads = gradients() if sys.argv[1] == "plain" else in_other_orders()
gradient_report(grads["0"].flatten()[:10])
open("/proc/self/clear_refs", "w").write("5")  # forgets how large it once was
before = kib("VmHWM")
gradient_report(grads)
print((kib("VmHWM") - before) / 1024)
"""


def measure(quick: bool) -> list[Finding]:
    """Return the extra memory, twice, and the time as a ratio; a report per parameter is part of it."""
    grads = gradients()
    timings = compare(
        {
            "report": lambda: gradient_report(grads),
            "histc": lambda: [torch.histc(each) for each in grads.values()],
        },
        baseline="histc",
        rounds=3 if quick else 20,
        warm_up=1,
    )
    number = sum(each.numel() for each in grads.values()) / 1e6
    print(f"  {number:.1f} million gradients, {torch.get_num_threads()} threads\n{timings}")
    return [
        against(timings, "report", "gradient_report ÷ torch.histc, seconds", SLOWER),
        Finding("extra memory", extra_memory("plain"), EXTRA_MIB, unit="MiB"),
        Finding("extra memory, other memory orders", extra_memory("other"), EXTRA_MIB, unit="MiB"),
    ]


def gradients() -> dict[str, torch.Tensor]:
    """Return gradients of all sizes between 2^-50 and 2^10, 1 % of them zero; made without a second copy of any."""
    dice = torch.Generator().manual_seed(0)
    return {str(number): _random(shape, dice) for number, shape in enumerate(SHAPES)}


def in_other_orders() -> dict[str, torch.Tensor]:
    """Return 20 million gradients that do not lie one behind the other in memory."""
    dice = torch.Generator().manual_seed(0)
    image = _random((10, 100, 100, 100), dice).permute(0, 3, 1, 2)
    return {"0": image, "gaps": _random((1000, 20_000), dice)[:, ::2]}


def _random(shape: tuple[int, ...], dice: torch.Generator) -> torch.Tensor:
    sizes = torch.empty(shape).normal_(-20, 8, generator=dice).clamp_(-50, 10).exp2_()
    # In pieces: what random numbers need must not look like our memory.
    for row in torch.split(sizes.view(-1), 1 << 16):
        row.mul_(torch.empty_like(row).uniform_(-1, 1, generator=dice).sign_())
        row[::100] = 0
    return sizes


def extra_memory(kind: str) -> float:
    """Return by how many MiB a process of its own grows during a report at most, in Linux's books (VmHWM).

    Args:
        kind: "plain" or "other", for `gradients` or `in_other_orders`.
    """
    command = [sys.executable, "-c", _MEMORY, kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
