"""The kind of support per number format on a GPU.

Where the tables come from:

- NVIDIA, *CUDA Programming Guide* (13.x), Compute Capabilities, table "Input Data Types Supported by Tensor
  Core Acceleration per Compute Capability": 7.5 to 12.x. For 7.0, which newer guides no longer list: NVIDIA,
  *Tesla V100 GPU Architecture* (white paper).
- NVIDIA, *CUDA C++ Programming Guide* (12.x and older), Arithmetic Instructions, table "Throughput of Native
  Arithmetic Instructions": FP16 against FP32 on GPUs without Tensor Cores.
- PyTorch's own condition for `torch._scaled_mm` (FP8): "compute capability >= 9.0 or 8.9, or ROCm MI300+".
- AMD, *ROCm documentation*, Data types and precision support: matrix core support per architecture.
"""

import re

from amp_lab.device.facts import GpuFacts
from amp_lab.device.support import Kind

_AMPERE = frozenset({"FP16", "BF16", "TF32"})
_TENSOR_CORE_FORMATS: dict[tuple[int, int], frozenset[str]] = {
    (7, 0): frozenset({"FP16"}),
    (7, 5): frozenset({"FP16"}),
    **dict.fromkeys([(8, 0), (8, 6), (8, 7)], _AMPERE),
    **dict.fromkeys([(8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], _AMPERE | {"FP8"}),
}
# GPUs without Tensor Cores, by FP16 against FP32 results per clock. The table says N/A for 5.0 and 5.2,
# 256 to 128 for 5.3 and 6.2, 128 to 64 for 6.0 and 2 to 128 for 6.1.
_FP16_WITHOUT_TENSOR_CORES: dict[tuple[int, int], Kind] = {
    (5, 0): "emulated",
    (5, 2): "emulated",
    (5, 3): "vector units",
    (6, 0): "vector units",
    (6, 1): "slow",
    (6, 2): "vector units",
}
# The small Turing chips (TU116, TU117) report 7.5 like a T4, but have FP16 units in place of Tensor Cores.
_SMALL_TURING = re.compile(r"\bGTX 16\d0\b|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b")

_AMD_MATRIX_FORMATS: dict[str, frozenset[str]] = {
    **dict.fromkeys(["gfx908", "gfx90a"], frozenset({"FP16", "BF16"})),
    **dict.fromkeys(["gfx942", "gfx950", "gfx1200", "gfx1201"], frozenset({"FP16", "BF16", "FP8"})),
}

_NOT_IN_THE_TABLES: dict[str, Kind] = {
    "FP32": "native",
    "TF32": "unknown",
    "FP16": "unknown",
    "BF16": "unknown",
    "FP8": "unknown",
}


def gpu_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    """The kind of support per format, in the order in which the report shows them."""
    return {"nvidia": _nvidia_kinds, "amd": _amd_kinds, "apple": _apple_kinds}[gpu.vendor](gpu)


def is_small_turing(gpu: GpuFacts) -> bool:
    """Whether this NVIDIA GPU has no Tensor Cores although its compute capability says so."""
    return gpu.capability == (7, 5) and _SMALL_TURING.search(gpu.name or "") is not None


def _nvidia_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    capability = gpu.capability or (0, 0)
    if capability in _FP16_WITHOUT_TENSOR_CORES:
        return _without_tensor_cores(_FP16_WITHOUT_TENSOR_CORES[capability])
    if is_small_turing(gpu):
        return _without_tensor_cores("vector units")
    if capability not in _TENSOR_CORE_FORMATS:
        return _NOT_IN_THE_TABLES
    formats = _TENSOR_CORE_FORMATS[capability]
    return {
        "FP32": "native",
        "TF32": "tensor cores" if "TF32" in formats else "none",
        "FP16": "tensor cores",
        "BF16": "tensor cores" if "BF16" in formats else "emulated",
        "FP8": "tensor cores" if "FP8" in formats else "storage only",
    }


def _without_tensor_cores(fp16: Kind) -> dict[str, Kind]:
    return {"FP32": "native", "TF32": "none", "FP16": fp16, "BF16": "emulated", "FP8": "storage only"}


def _amd_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    if gpu.chip not in _AMD_MATRIX_FORMATS:
        return _NOT_IN_THE_TABLES
    fp8: Kind = "matrix units" if "FP8" in _AMD_MATRIX_FORMATS[gpu.chip] else "storage only"
    return {"FP32": "native", "TF32": "unknown", "FP16": "matrix units", "BF16": "matrix units", "FP8": fp8}


def _apple_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    answers: dict[bool | None, Kind] = {True: "storage only", False: "none", None: "unknown"}
    fp8 = answers[gpu.stores_fp8]
    return {"FP32": "native", "TF32": "none", "FP16": "vector units", "BF16": "unknown", "FP8": fp8}
