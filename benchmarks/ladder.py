"""The ladder of lesson 08: a training step in TF32, FP16, BF16, fused and compiled, as a ratio to one in FP32.

The model is a stack of PyTorch's encoder layers, as `amp_lab.train.measure.ladder` says in its docstring; FP32 has both
TF32 switches off. Nothing here has a bar: it is the hardware that is measured. On a CPU the 16-bit steps run on what
that CPU has for them, and the rungs that it lacks are left out, each with its reason.

The whole ladder is kept beside the findings, as `amp_lab.train.measure.Ladder.from_dict` reads it.
"""

from __future__ import annotations

from amp_lab.train.measuring.ladders import Ladder, ladder
from benchmarks.finding import Finding


def measure(quick: bool) -> tuple[list[Finding], dict[str, object]]:
    """Return the ratios, and the ladder itself to be kept; `quick` takes few rounds and does not compile."""
    climbed = ladder(rounds=2, compile=False) if quick else ladder()
    print(climbed)
    return findings(climbed), {"ladder": climbed.as_dict()}


def findings(climbed: Ladder) -> list[Finding]:
    """Return the seconds of each rung that was measured over those of FP32, the lowest one."""
    lowest, *others = climbed.rungs
    return [
        Finding(f"a step in {each.name} ÷ one in {lowest.name}", 1 / each.speedup, noise=climbed.noise)
        for each in others
        if each.speedup is not None
    ]
