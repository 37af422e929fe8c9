"""Whether the installed PyTorch can run on a GPU at all.

NVIDIA, *CUDA Programming Guide*, compatibility of binaries and PTX: machine code (sm_86) runs on its own major
version from that minor on, PTX (compute_86) on anything newer; a final "a" binds to one chip, an "f" to its
major version.
"""

import re

from amp_lab.device.facts import GpuFacts


def has_kernels(gpu: GpuFacts) -> bool:
    """Whether this PyTorch's build can run on an NVIDIA GPU; True where there is nothing to compare."""
    if gpu.capability is None or not gpu.built_for:
        return True
    return any(_runs_on(target, gpu.capability) for target in gpu.built_for)


def _runs_on(target: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", target)
    if match is None:
        return False
    code, major, minor, suffix = match.groups()
    built = (int(major), int(minor))
    if suffix == "a":
        return capability == built
    if code == "compute" and not suffix:
        return capability >= built
    return capability[0] == built[0] and capability >= built
