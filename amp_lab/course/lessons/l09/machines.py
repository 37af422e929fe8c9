"""The machines of exercise 9.2, and how they compute in 16 bits.

Their kinds of support are not written down here: `amp_lab.device` judges them, from what it would be told there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amp_lab.device.cpu_kinds import cpu_kinds
from amp_lab.device.facts import CpuFacts, GpuFacts
from amp_lab.device.gpu_kinds import gpu_kinds
from amp_lab.device.support import Kind


@dataclass(frozen=True)
class Machine:
    """A device, in the words of lesson 00. `says_bf16` is what `torch.cuda.is_bf16_supported()` answers there."""

    type: Literal["cuda", "cpu", "mps"]
    name: str
    fp16: Kind
    bf16: Kind
    says_bf16: bool


def machine_of(kind: Literal["cuda", "cpu", "mps"], facts: GpuFacts | CpuFacts) -> Machine:
    """Return the machine that these facts describe."""
    if isinstance(facts, CpuFacts):
        kinds, name = cpu_kinds(facts), facts.model
    else:
        kinds, name = gpu_kinds(facts), facts.name
    # Without `including_emulation=False` PyTorch says yes wherever a BF16 tensor can be made.
    return Machine(kind, name or "", kinds["FP16"], kinds["BF16"], says_bf16=kind == "cuda")


def _nvidia(name: str, major: int, minor: int) -> GpuFacts:
    return GpuFacts("nvidia", name, None, capability=(major, minor))


def _cpu(name: str, architecture: str, *features: str, fp16: bool = False) -> CpuFacts:
    return CpuFacts(name, architecture, None, None, None, features, fp16, onednn_bfloat16=True)


FACTS: dict[Literal["cuda", "cpu", "mps"], tuple[GpuFacts | CpuFacts, ...]] = {
    "cuda": (
        _nvidia("A100", 8, 0),
        _nvidia("T4", 7, 5),
        _nvidia("V100", 7, 0),
        _nvidia("GeForce GTX 1650", 7, 5),
        _nvidia("Tesla P100", 6, 0),
        _nvidia("GeForce RTX 3090", 8, 6),
        _nvidia("L4", 8, 9),
        _nvidia("H200", 9, 0),
        _nvidia("B200", 10, 0),
        GpuFacts("amd", "Instinct MI300X", None, architecture="gfx942"),
    ),
    "cpu": (
        _cpu("Xeon with AVX2", "x86_64"),
        _cpu("Xeon with AVX512_BF16", "x86_64", "avx512_bf16"),
        _cpu("Xeon with AMX", "x86_64", "avx512_bf16", "avx512_fp16", "amx_bf16", fp16=True),
        _cpu("Arm server", "aarch64", "asimdhp", "bf16"),
    ),
    "mps": (GpuFacts("apple", "Apple M3", None),),
}
MACHINES = tuple(machine_of(kind, facts) for kind, found in FACTS.items() for facts in found)
