"""What this machine can do for mixed precision.

    print(describe_device())

Two halves, kept apart on purpose. *Asking* reads facts from PyTorch and the operating system and judges
nothing. *Explaining* is a pure function from those facts to one sentence per number format, so a V100 or a
B200 can be explained, and tested, on a laptop that has neither.

Where the tables come from:

- NVIDIA, *CUDA Programming Guide* (13.x), Compute Capabilities, table "Input Data Types Supported by Tensor
  Core Acceleration per Compute Capability": 7.5 to 12.x. For 7.0, which newer guides no longer list: NVIDIA,
  *Tesla V100 GPU Architecture* (white paper).
- NVIDIA, *CUDA C++ Programming Guide* (12.x and older), Arithmetic Instructions, table "Throughput of Native
  Arithmetic Instructions": FP16 against FP32 on GPUs without Tensor Cores.
- PyTorch's own condition for `torch._scaled_mm` (FP8): "compute capability >= 9.0 or 8.9, or ROCm MI300+".
- AMD, *ROCm documentation*, Data types and precision support: matrix core support per architecture.
- Intel, *Intrinsics Guide*: AVX512_BF16, AVX512_FP16, AMX-BF16, AMX-FP16. Arm, *Architecture Reference
  Manual*: FEAT_FP16, FEAT_BF16.
"""

import contextlib
import glob
import html
import json
import os
import platform
import re
import shutil
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

__all__ = ["DeviceFacts", "DeviceReport", "FormatSupport", "describe_device", "explain"]

Kind = Literal[
    "native",  # FP32: what everything else is compared with
    "tensor cores",  # NVIDIA's matrix units
    "matrix units",  # AMD's matrix cores, Intel's AMX tiles
    "vector units",  # ordinary arithmetic units compute in this format
    "emulated",  # kept in this format, computed in another
    "slow",  # works, at a fraction of FP32's speed
    "storage only",  # kept and cast, no matrix products
    "none",
    "unknown",
]


# ---------------------------------------------------------------- facts: what was asked, nothing concluded


@dataclass(frozen=True)
class CpuFacts:
    """The processor. Memory is in bytes; `cores` counts logical ones.

    `vector_level` is the instruction set of PyTorch's own CPU kernels. `features` are the low-precision
    instruction sets, named as in Linux's /proc/cpuinfo; None means that nobody could be asked. `onednn_*` is
    PyTorch's answer to whether its matrix library takes that dtype on this CPU.
    """

    model: str
    architecture: str
    cores: int | None
    memory_bytes: int | None
    vector_level: str
    features: tuple[str, ...] | None
    onednn_float16: bool | None
    onednn_bfloat16: bool | None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU out of `count`. Memory is in bytes.

    `capability` is NVIDIA's compute capability, `architecture` AMD's gfx name, `built_for` what this PyTorch
    holds kernels for. `bf16_native` is `torch.cuda.is_bf16_supported(including_emulation=False)`: without its
    argument it also says True on a T4 or V100, which only emulate BF16. `stores_fp8` is asked where it is in
    doubt (Apple).
    """

    vendor: Literal["nvidia", "amd", "apple"]
    name: str
    memory_bytes: int
    count: int = 1
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    built_for: tuple[str, ...] = ()
    bf16_native: bool | None = None
    stores_fp8: bool | None = None


@dataclass(frozen=True)
class TorchFacts:
    """The installed PyTorch. `cuda` and `rocm` are the versions it was built for, None for other builds."""

    version: str
    python: str
    system: str
    cuda: str | None
    rocm: str | None
    mps: bool
    nccl: bool
    threads: int


@dataclass(frozen=True)
class AmpFacts:
    """What `torch.autocast` and `torch.amp.GradScaler` do on this device type."""

    autocast_dtypes: tuple[str, ...]
    default_dtype: str | None
    grad_scaler: bool


@dataclass(frozen=True)
class Fp32Switches:
    """What FP32 products may be shortened to right now: "tf32", "bf16", or not at all ("none", "ieee")."""

    cuda_matmul: str
    cudnn_conv: str
    cpu_matmul: str


@dataclass(frozen=True)
class DeviceFacts:
    """Everything that was asked about one device.

    `present` names the devices that PyTorch can use here, `warnings` is what PyTorch said while it was asked,
    `nvidia_seen` a trace of an NVIDIA GPU outside PyTorch, `cuda_visible_devices` that environment variable.
    """

    device: str
    present: tuple[str, ...]
    gpu: GpuFacts | None
    cpu: CpuFacts
    torch: TorchFacts
    amp: AmpFacts
    fp32: Fp32Switches
    warnings: tuple[str, ...] = ()
    nvidia_seen: str | None = None
    cuda_visible_devices: str | None = None


# ---------------------------------------------------------------- meaning: from facts to sentences


@dataclass(frozen=True)
class FormatSupport:
    """One number format on one device: what kind of support it has and what that means for a learner."""

    format: str
    kind: Kind
    meaning: str


_AMPERE = frozenset({"FP16", "BF16", "TF32"})
_TENSOR_CORE_FORMATS: dict[tuple[int, int], frozenset[str]] = {
    (7, 0): frozenset({"FP16"}),
    (7, 5): frozenset({"FP16"}),
    **dict.fromkeys([(8, 0), (8, 6), (8, 7)], _AMPERE),
    **dict.fromkeys([(8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], _AMPERE | {"FP8"}),
}
# GPUs without Tensor Cores: FP16 results per clock as a multiple of FP32 results. The table says N/A for 5.0
# and 5.2, 256 to 128 for 5.3 and 6.2, 128 to 64 for 6.0 and 2 to 128 for 6.1.
_FP16_RATE: dict[tuple[int, int], float] = {
    (5, 0): 0,
    (5, 2): 0,
    (5, 3): 2,
    (6, 0): 2,
    (6, 1): 1 / 64,
    (6, 2): 2,
}
# The small Turing chips (TU116, TU117) report 7.5 like a T4, but have FP16 units in place of Tensor Cores.
_SMALL_TURING = re.compile(r"\bGTX 16\d0\b|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b")

_AMD_MATRIX_FORMATS: dict[str, frozenset[str]] = {
    **dict.fromkeys(["gfx908", "gfx90a"], frozenset({"FP16", "BF16"})),
    **dict.fromkeys(["gfx942", "gfx950", "gfx1200", "gfx1201"], frozenset({"FP16", "BF16", "FP8"})),
}

# Per format and processor family: the flag of the matrix unit (or None) and of the vector arithmetic.
_CPU_FLAGS: dict[tuple[str, str], tuple[str | None, str]] = {
    ("FP16", "x86"): ("amx_fp16", "avx512_fp16"),
    ("BF16", "x86"): ("amx_bf16", "avx512_bf16"),
    ("FP16", "arm"): (None, "asimdhp"),
    ("BF16", "arm"): (None, "bf16"),
}
_CPU_FAMILIES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}

# What each kind of support means: (place, format, kind), "*" for any. Blanks are filled by `_values`.
_MEANINGS: dict[tuple[str, str, Kind], str] = {
    ("*", "FP32", "native"): "The base: every gain in speed or memory is counted against it.{shortened}",
    ("nvidia", "TF32", "tensor cores"): (
        "FP32 products whose inputs are first rounded to 10 fraction bits. Now {matmul} for matrix products "
        "and {conv} for cuDNN convolutions: know both before you call a measurement FP32."
    ),
    ("nvidia", "TF32", "none"): "It begins with compute capability 8.0: its switches change nothing here.",
    ("nvidia", "FP16", "tensor cores"): (
        "Fast on Tensor Cores. Small gradients can become zero: torch.autocast with torch.amp.GradScaler."
    ),
    ("nvidia", "FP16", "vector units"): (
        "No Tensor Cores. FP16 arithmetic has twice the FP32 rate, but PyTorch's matrix products add in "
        "FP32: it saves memory; measure before you expect speed."
    ),
    ("nvidia", "FP16", "slow"): (
        "No Tensor Cores, and FP16 arithmetic runs at 1/64 of the FP32 rate: it saves memory, not time."
    ),
    ("nvidia", "FP16", "emulated"): (
        "This chip has no FP16 arithmetic: values are kept in 16 bits and computed in FP32. It saves memory, "
        "not time."
    ),
    ("nvidia", "BF16", "tensor cores"): (
        "Fast on Tensor Cores, with FP32's range and 7 fraction bits: torch.autocast, usually without "
        "GradScaler."
    ),
    ("nvidia", "BF16", "emulated"): (
        "Native BF16 begins with compute capability 8.0. PyTorch emulates it here: slow, and some operations "
        "refuse it. torch.cuda.is_bf16_supported() says True all the same unless including_emulation=False."
    ),
    ("nvidia", "BF16", "unknown"): (
        "Compute capability {capability} is not in the tables behind this report. PyTorch says that BF16 is "
        "{native} here."
    ),
    ("nvidia", "FP8", "tensor cores"): (
        "Fast on Tensor Cores through torch._scaled_mm or a library built on it; torch.autocast does not "
        "choose it."
    ),
    ("nvidia", "FP8", "storage only"): (
        "FP8 tensors can be kept and cast; torch._scaled_mm asks for compute capability 8.9 or newer."
    ),
    ("nvidia", "*", "unknown"): "Compute capability {capability} is not in the tables behind this report.",
    ("amd", "FP16", "matrix units"): (
        "AMD's matrix cores take FP16. Small gradients can become zero: torch.autocast with torch.amp.GradScaler."
    ),
    ("amd", "BF16", "matrix units"): (
        "AMD's matrix cores take BF16, with FP32's range and 7 fraction bits: torch.autocast, usually "
        "without GradScaler."
    ),
    ("amd", "FP8", "matrix units"): (
        "AMD's matrix cores take FP8 through torch._scaled_mm; torch.autocast does not choose it."
    ),
    ("amd", "FP8", "storage only"): (
        "FP8 tensors can be kept and cast; torch._scaled_mm asks for an MI300 or newer."
    ),
    ("amd", "TF32", "unknown"): "This report knows TF32 and its switches on NVIDIA GPUs only.",
    ("amd", "*", "unknown"): "The AMD chip {chip} is not in the table behind this report.",
    ("apple", "TF32", "none"): "The TF32 switches of cuBLAS and cuDNN change nothing on an Apple GPU.",
    ("apple", "FP16", "vector units"): "Metal computes with 16-bit half; how much faster than FP32: measure.",
    ("apple", "BF16", "unknown"): (
        "torch.autocast {takes_bf16} bfloat16 here; how this chip computes with it is not known: measure."
    ),
    ("apple", "FP8", "storage only"): "FP8 tensors can be kept on this GPU; fast arithmetic is not known.",
    ("apple", "FP8", "none"): "PyTorch refuses FP8 tensors on this GPU.",
    ("cpu", "TF32", "none"): "The TF32 switches of cuBLAS and cuDNN change nothing on a CPU.",
    ("cpu", "TF32", "unknown"): (
        "On CPUs with AMX-FP16 PyTorch can shorten FP32 products to TF32, if "
        "torch.backends.mkldnn.matmul.fp32_precision asks for it; whether that helps here: measure."
    ),
    ("cpu", "*", "matrix units"): (
        "AMX tiles multiply {name} and add in FP32: large matrix products can be faster than in FP32."
    ),
    ("cpu", "*", "vector units"): (
        "The CPU has vector instructions for {name}; whether PyTorch's products beat FP32 here: measure."
    ),
    ("cpu", "*", "emulated"): (
        "PyTorch converts {name} to FP32 and back: right results, usually slower than FP32."
    ),
    ("cpu", "*", "slow"): (
        "PyTorch has no fast {name} kernels for this CPU: right results, but large matrix products and "
        "convolutions can be many times slower than in FP32."
    ),
    ("cpu", "*", "unknown"): (
        "Right results; whether this CPU computes with {name} directly could not be found out: measure."
    ),
    ("cpu", "FP8", "emulated"): (
        "Matrix products run (@, torch._scaled_mm), + and sum refuse FP8 tensors; this report knows of no "
        "FP8 hardware in CPUs."
    ),
}


def explain(facts: DeviceFacts) -> tuple[FormatSupport, ...]:
    """Say what `facts` mean for FP32, TF32, FP16, BF16 and FP8, in this order. Asks nothing."""
    kinds = _kinds(facts)
    return tuple(FormatSupport(name, kind, _meaning(name, kind, facts)) for name, kind in kinds.items())


def _meaning(name: str, kind: Kind, facts: DeviceFacts) -> str:
    place = facts.gpu.vendor if facts.gpu else "cpu"
    keys: list[tuple[str, str, Kind]] = [(place, name, kind), (place, "*", kind), ("*", name, kind)]
    text = next(_MEANINGS[key] for key in keys if key in _MEANINGS)
    return text.format(name=name, **_values(facts))


def _values(facts: DeviceFacts) -> dict[str, str]:
    """What the blanks in `_MEANINGS` stand for on this device."""
    gpu, fp32 = facts.gpu, facts.fp32
    return {
        "shortened": _shortened_on_cpu(facts) if gpu is None else "",
        "matmul": "on" if fp32.cuda_matmul == "tf32" else "off",
        "conv": "on" if fp32.cudnn_conv == "tf32" else "off",
        "capability": _capability(gpu),
        "native": "native" if gpu and gpu.bf16_native else "not native",
        "chip": _amd_chip(gpu) if gpu else "",
        "takes_bf16": "takes" if "bfloat16" in facts.amp.autocast_dtypes else "does not take",
    }


def _shortened_on_cpu(facts: DeviceFacts) -> str:
    """torch.set_float32_matmul_precision("medium") reaches the CPU too, where there is hardware for it."""
    has_bf16 = _cpu_16_bit("BF16", facts.cpu, facts.cpu.onednn_bfloat16) in ("matrix units", "vector units")
    possible = {"bf16": has_bf16, "tf32": "amx_fp16" in (facts.cpu.features or ())}
    if not possible.get(facts.fp32.cpu_matmul):
        return ""
    return (
        f" But FP32 matrix products may be shortened to {facts.fp32.cpu_matmul.upper()} now: "
        "torch.backends.mkldnn.matmul.fp32_precision says so."
    )


def _kinds(facts: DeviceFacts) -> dict[str, Kind]:
    """The kind of support per format, in the order in which the report shows them."""
    gpu = facts.gpu
    if gpu is None:
        return _cpu_kinds(facts.cpu)
    return {"nvidia": _nvidia_kinds, "amd": _amd_kinds, "apple": _apple_kinds}[gpu.vendor](gpu)


def _nvidia_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    formats = _tensor_core_formats(gpu)
    if formats is None:
        return {"FP32": "native", **dict.fromkeys(("TF32", "FP16", "BF16", "FP8"), "unknown")}
    return {
        "FP32": "native",
        "TF32": "tensor cores" if "TF32" in formats else "none",
        "FP16": "tensor cores" if "FP16" in formats else _ordinary_fp16(gpu.capability),
        "BF16": "tensor cores" if "BF16" in formats else "emulated",
        "FP8": "tensor cores" if "FP8" in formats else "storage only",
    }


def _tensor_core_formats(gpu: GpuFacts) -> frozenset[str] | None:
    """What this NVIDIA GPU's Tensor Cores take: nothing where it has none, None where the tables end."""
    if gpu.capability in _FP16_RATE or _is_small_turing(gpu):
        return frozenset()
    return None if gpu.capability is None else _TENSOR_CORE_FORMATS.get(gpu.capability)


def _is_small_turing(gpu: GpuFacts) -> bool:
    return gpu.capability == (7, 5) and _SMALL_TURING.search(gpu.name) is not None


def _ordinary_fp16(capability: tuple[int, int] | None) -> Kind:
    rate = _FP16_RATE.get(capability or (0, 0), 2)  # 2: the small Turing chips
    if rate == 0:
        return "emulated"
    return "slow" if rate < 1 else "vector units"


def _amd_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    formats = _AMD_MATRIX_FORMATS.get(_amd_chip(gpu))
    if formats is None:
        return {"FP32": "native", **dict.fromkeys(("TF32", "FP16", "BF16", "FP8"), "unknown")}
    fp8: Kind = "matrix units" if "FP8" in formats else "storage only"
    return {"FP32": "native", "TF32": "unknown", "FP16": "matrix units", "BF16": "matrix units", "FP8": fp8}


def _amd_chip(gpu: GpuFacts) -> str:
    """gfx90a of gfx90a:sramecc+:xnack-"""
    return (gpu.architecture or "of unknown name").partition(":")[0]


def _apple_kinds(gpu: GpuFacts) -> dict[str, Kind]:
    fp8: Kind = "storage only" if gpu.stores_fp8 else "none"
    return {"FP32": "native", "TF32": "none", "FP16": "vector units", "BF16": "unknown", "FP8": fp8}


def _cpu_kinds(cpu: CpuFacts) -> dict[str, Kind]:
    may_have_tf32 = cpu.features is None or "amx_fp16" in cpu.features
    return {
        "FP32": "native",
        "TF32": "unknown" if may_have_tf32 else "none",
        "FP16": _cpu_16_bit("FP16", cpu, cpu.onednn_float16),
        "BF16": _cpu_16_bit("BF16", cpu, cpu.onednn_bfloat16),
        "FP8": "emulated",
    }


def _cpu_16_bit(name: str, cpu: CpuFacts, onednn: bool | None) -> Kind:
    family = _CPU_FAMILIES.get(cpu.architecture.lower(), "")
    if cpu.features is None or (name, family) not in _CPU_FLAGS:
        return "unknown"
    matrix, vector = _CPU_FLAGS[name, family]
    # An x86 flag helps only where PyTorch's matrix library uses it; on Arm there are other kernels as well.
    usable = onednn is not False or family == "arm"
    if usable and matrix in cpu.features:
        return "matrix units"
    if usable and vector in cpu.features:
        return "vector units"
    return "emulated" if onednn else "slow"


def _capability(gpu: GpuFacts | None) -> str:
    return "unknown" if gpu is None or gpu.capability is None else f"{gpu.capability[0]}.{gpu.capability[1]}"


def _has_kernels(gpu: GpuFacts) -> bool:
    """Whether this PyTorch's build can run on an NVIDIA GPU; True where there is nothing to compare.

    NVIDIA, *CUDA Programming Guide*, compatibility of binaries and PTX: machine code (sm_86) runs on its own
    major version from that minor on, PTX (compute_86) on anything newer, and a final "a" binds to one chip.
    """
    if gpu.capability is None or not gpu.built_for:
        return True
    return any(_runs_on(target, gpu.capability) for target in gpu.built_for)


def _runs_on(target: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", target)
    if match is None:
        return False
    built = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return capability == built
    if match[1] == "compute" and not match[4]:
        return capability >= built
    return capability[0] == built[0] and capability >= built


# ---------------------------------------------------------------- the report


@dataclass(frozen=True, repr=False)
class DeviceReport:
    """What one device can do: `facts` as asked, `formats` as explained. Print it or show it in a notebook."""

    facts: DeviceFacts
    formats: tuple[FormatSupport, ...]

    @property
    def device(self) -> str:
        """The device as PyTorch names it, for example "cuda:0"."""
        return self.facts.device

    @property
    def name(self) -> str:
        """The model of the GPU, or of the CPU where the device is a CPU."""
        return self.facts.gpu.name if self.facts.gpu else self.facts.cpu.model

    def support(self, number_format: str) -> FormatSupport:
        """The entry for "FP32", "TF32", "FP16", "BF16" or "FP8"; KeyError for any other name."""
        return {entry.format: entry for entry in self.formats}[number_format]

    def notes(self) -> tuple[str, ...]:
        """What the tables do not say: a GPU that cannot be used, other devices, PyTorch's own warnings."""
        return (*_missing_gpu_notes(self.facts), *_device_notes(self.facts), *self.facts.warnings)

    def not_run_here(self) -> tuple[str, ...]:
        """Which parts of a course on AMP this machine cannot show, each by name and with its reason."""
        gpu, here = self.facts.gpu, f"this device is {self.device}"
        if gpu and not _has_kernels(gpu):
            return (f"Everything on {gpu.name}: this PyTorch has no kernels for it.",)
        skipped = list(self._without_tensor_cores())
        if gpu is None or gpu.vendor == "apple":
            skipped += [
                f"CUDA memory numbers: {here}, and torch.cuda counts the memory of CUDA devices.",
                f"Finding host synchronisations: {here}, and torch.cuda.set_sync_debug_mode watches CUDA.",
                f"NCCL: {here}, and NCCL connects CUDA devices; gloo takes its place.",
            ]
        elif not self.facts.torch.nccl:
            skipped.append("NCCL: this PyTorch was built without it.")
        elif gpu.count == 1:
            skipped.append("NCCL between GPUs: there is one GPU here.")
        return tuple(skipped)

    def _without_tensor_cores(self) -> Iterator[str]:
        """Unknown support of an NVIDIA GPU is no reason to skip: running it will tell."""
        gpu = self.facts.gpu
        run = ("tensor cores", "unknown") if gpu and gpu.vendor == "nvidia" else ()
        missing = [entry.format for entry in self.formats if entry.kind not in run and entry.format != "FP32"]
        if gpu is None:
            why = "this device is a CPU"
        elif gpu.vendor != "nvidia":
            why = f"{gpu.name} is not an NVIDIA GPU"
        elif len(missing) == len(self.formats) - 1:
            why = f"{gpu.name} (compute capability {_capability(gpu)}) has no Tensor Cores"
        else:
            why = f"{gpu.name}'s Tensor Cores (compute capability {_capability(gpu)}) are for other formats"
        if missing:
            yield f"Tensor Core speed in {', '.join(missing)}: {why}."

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings, numbers, booleans and None, ready for `json.dump`."""
        formats = {entry.format: {"kind": entry.kind, "meaning": entry.meaning} for entry in self.formats}
        report = {
            "device": self.device,
            "name": self.name,
            "formats": formats,
            "notes": self.notes(),
            "not_run_here": self.not_run_here(),
            "facts": asdict(self.facts),
        }
        plain: dict[str, Any] = json.loads(json.dumps(report))
        return plain

    def __repr__(self) -> str:
        return f"<DeviceReport {self.device}: {self.name}>"

    def __str__(self) -> str:
        facts = [_wrapped(11, label, text) for label, text in _fact_rows(self)]
        table = [_wrapped(23, f"{row.format:<8}{row.kind}", row.meaning) for row in self.formats]
        notes = [_wrapped(11, "Note", note) for note in self.notes()]
        head = _wrapped(23, "Format  Support", "What it means here")
        return "\n".join([*facts, "", head, *table, *([""] if notes else []), *notes])

    def _repr_html_(self) -> str:
        """Plain tables without colours of their own, so that light and dark themes stay readable."""
        facts = "".join(_html_row("td", *row) for row in _fact_rows(self))
        head = _html_row("th", "Format", "Support", "What it means here")
        table = "".join(_html_row("td", row.format, row.kind, row.meaning) for row in self.formats)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes())
        return f"<table>{facts}</table><table>{head}{table}</table><ul>{notes}</ul>"


def _fact_rows(report: DeviceReport) -> tuple[tuple[str, str], ...]:
    facts, built = report.facts, report.facts.torch
    scaler = "works" if facts.amp.grad_scaler else "does not work"
    return (
        ("Device", " · ".join([facts.device, report.name, *_gpu_details(facts.gpu)])),
        ("PyTorch", f"{built.version}, {_build(built)} · Python {built.python} · {built.threads} threads"),
        ("System", built.system),
        ("CPU", _cpu_details(facts.cpu)),
        ("CPU has", _cpu_features(facts.cpu)),
        ("autocast", _autocast_line(facts.amp)),
        ("GradScaler", f"{scaler} on this device"),
    )


def _gpu_details(gpu: GpuFacts | None) -> Iterator[str]:
    if gpu is None:
        return
    yield _gib(gpu.memory_bytes) + (" shared with the CPU" if gpu.vendor == "apple" else "")
    if gpu.vendor == "nvidia":
        yield f"compute capability {_capability(gpu)}"
    if gpu.vendor == "amd":
        yield f"AMD chip {_amd_chip(gpu)}"


def _build(built: TorchFacts) -> str:
    if built.cuda:
        return f"built for CUDA {built.cuda}"
    if built.rocm:
        return f"built for ROCm {built.rocm}"
    return "built with MPS" if built.mps else "CPU build"


def _cpu_details(cpu: CpuFacts) -> str:
    cores = f"{cpu.cores or 'unknown number of'} logical cores"
    return " · ".join([cpu.model, cpu.architecture, cores, _gib(cpu.memory_bytes)])


def _cpu_features(cpu: CpuFacts) -> str:
    kernels = f"PyTorch's kernels: {cpu.vector_level}"
    if cpu.features is None:
        return f"instruction sets unknown · {kernels}"
    return f"{' '.join(cpu.features) or 'no low-precision instruction set'} · {kernels}"


def _autocast_line(amp: AmpFacts) -> str:
    if not amp.autocast_dtypes:
        return "takes no 16-bit dtype on this device"
    return f"takes {' and '.join(amp.autocast_dtypes)}, by default {amp.default_dtype}"


def _gib(size: int | None) -> str:
    return "memory unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _wrapped(column: int, label: str, text: str) -> str:
    """`label`, then `text` from `column` on, in lines of 100 characters that break at spaces only."""
    lines = textwrap.wrap(text, 100 - column, break_on_hyphens=False, break_long_words=False)
    return f"{label:<{column}}" + ("\n" + " " * column).join(lines)


def _html_row(tag: str, *cells: str) -> str:
    body = "".join(f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{body}</tr>"


def _missing_gpu_notes(facts: DeviceFacts) -> Iterator[str]:
    built, seen = facts.torch, facts.nvidia_seen
    if any(name != "cpu" for name in facts.present):
        return
    if built.cuda or built.rocm:
        target = f"CUDA {built.cuda}" if built.cuda else f"ROCm {built.rocm}"
        yield f"This PyTorch is built for {target}, but no usable GPU was found."
        if facts.cuda_visible_devices is not None:
            yield f"CUDA_VISIBLE_DEVICES is {facts.cuda_visible_devices!r}: it may hide GPUs from PyTorch."
        if built.cuda and seen:
            yield f"But {seen} is there: is the driver new enough? nvidia-smi shows which CUDA it supports."
    elif built.mps:
        yield "This PyTorch is built with MPS, but no usable Apple GPU was found."
    elif seen:
        yield f"A GPU seems present ({seen}) but this PyTorch is a CPU build: install a CUDA build to use it."


def _device_notes(facts: DeviceFacts) -> Iterator[str]:
    gpu = facts.gpu
    if gpu and not _has_kernels(gpu):
        yield (
            f"This PyTorch has no kernels for compute capability {_capability(gpu)} (it has them for "
            f"{', '.join(gpu.built_for)}): operations on this GPU fail. Install a build that covers it."
        )
    if gpu and _is_small_turing(gpu):
        yield (
            "This GPU reports the compute capability of a T4 but has no Tensor Cores. Slow FP16 products and "
            "NaN in FP16 convolutions have been reported from such GPUs: check results and measure."
        )
    others = [name for name in facts.present if name not in (facts.device, "cpu")]
    if others:
        yield f"Also here: {', '.join(others)}."
    if gpu is None and facts.amp.autocast_dtypes and facts.amp.grad_scaler:
        yield "torch.autocast and GradScaler do their work on a CPU too; only the speed needs hardware."


# ---------------------------------------------------------------- asking PyTorch and the operating system


def describe_device(device: str | torch.device | None = None) -> DeviceReport:
    """Describe `device`, by default the best one present (CUDA, then MPS, then CPU).

    Changes no setting, runs no model and prints nothing; what PyTorch warns about meanwhile ends up in the
    report's notes. Switches such as TF32's are read as they stand now.

    Raises TypeError for anything but a string, a torch.device or None, and ValueError for a device that is
    not here; the message says what is.
    """
    if not isinstance(device, str | torch.device | None):
        raise TypeError(f"describe_device takes a name like 'cpu', a torch.device or None, not {device!r}.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        present = _present_devices()
        chosen = _choose(device, present, caught)
        facts = _ask(chosen, present)
    facts = replace(facts, warnings=_for_users(caught))
    return DeviceReport(facts, explain(facts))


def _for_users(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """Each warning once and on one line; deprecations speak to developers and are left out."""
    deprecations = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
    texts = [" ".join(str(w.message).split()) for w in caught if not issubclass(w.category, deprecations)]
    return tuple(dict.fromkeys(texts))


def _present_devices() -> tuple[str, ...]:
    cuda = [f"cuda:{index}" for index in range(_usable_cuda_devices())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return (*cuda, *mps, "cpu")


def _usable_cuda_devices() -> int:
    cuda: Any = torch.cuda
    if not cuda.is_available():
        return 0
    try:
        cuda.init()
    except (RuntimeError, AssertionError) as error:  # a driver that is there but does not start
        warnings.warn(f"CUDA could not be started: {error}", stacklevel=2)
        return 0
    return int(cuda.device_count())


def _choose(
    device: str | torch.device | None, present: tuple[str, ...], caught: list[warnings.WarningMessage]
) -> torch.device:
    """The device asked for, with its index; ValueError, with what PyTorch said, if it is not here."""
    asked = present[0].partition(":")[0] if device is None else str(device)
    here = f"Here there is: {', '.join(present)}."
    try:
        chosen = torch.device(asked)
    except RuntimeError:
        raise ValueError(f"{asked!r} is not the name of a device. {here}") from None
    known = str(chosen) == asked  # PyTorch keeps the index in 8 bits: "cuda:256" would become cuda:0
    if chosen.type == "cuda" and chosen.index is None and "cuda:0" in present:
        chosen = torch.device("cuda", torch.cuda.current_device())
    if str(chosen) in ("cpu:0", "mps:0"):
        chosen = torch.device(chosen.type)
    if not known or str(chosen) not in present:
        said = "".join(f" PyTorch says: {text}" for text in _for_users(caught))
        raise ValueError(f"There is no device {asked!r} to describe on this machine. {here}{said}")
    return chosen


def _ask(device: torch.device, present: tuple[str, ...]) -> DeviceFacts:
    gpu = {"cuda": _ask_cuda, "mps": _ask_mps}.get(device.type)
    return DeviceFacts(
        device=str(device),
        present=present,
        gpu=gpu(device) if gpu else None,
        cpu=_ask_cpu(),
        torch=_ask_torch(),
        amp=_ask_amp(device),
        fp32=_ask_fp32_switches(),
        nvidia_seen=_nvidia_trace(),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _ask_cuda(device: torch.device) -> GpuFacts:
    properties = torch.cuda.get_device_properties(device)
    gpu = GpuFacts("nvidia", properties.name, properties.total_memory, torch.cuda.device_count())
    if torch.version.hip:
        # ROCm answers through the same API, but there major and minor are not NVIDIA's compute capability.
        return replace(gpu, vendor="amd", architecture=properties.gcnArchName)
    with torch.cuda.device(device):  # is_bf16_supported speaks of the current device
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    capability, built_for = (properties.major, properties.minor), tuple(torch.cuda.get_arch_list())
    return replace(gpu, capability=capability, built_for=built_for, bf16_native=native)


def _ask_mps(device: torch.device) -> GpuFacts:
    try:
        torch.empty(1, dtype=torch.float8_e4m3fn, device=device)
        stores_fp8 = True
    except (TypeError, RuntimeError):
        stores_fp8 = False
    name = torch.backends.mps.get_name()
    return GpuFacts("apple", name, torch.mps.recommended_max_memory(), stores_fp8=stores_fp8)


def _ask_torch() -> TorchFacts:
    return TorchFacts(
        version=str(torch.__version__),
        python=platform.python_version(),
        system=platform.platform(),
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        mps=torch.backends.mps.is_built(),
        nccl=torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        threads=torch.get_num_threads(),
    )


def _ask_amp(device: torch.device) -> AmpFacts:
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with current:
        dtypes = tuple(name for name in ("float16", "bfloat16") if _autocast_takes(device.type, name))
    default = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.") if dtypes else None
    # GradScaler's two operators. A real step would start CUDA's context and allocate memory.
    needed = ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_")
    return AmpFacts(dtypes, default, all(_has_kernel(operator, device.type) for operator in needed))


def _autocast_takes(device_type: str, dtype: str) -> bool:
    """Enter an empty region and look whether autocast is on in it: for a wrong dtype PyTorch only warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast(device_type, dtype=getattr(torch, dtype)):
                return torch.is_autocast_enabled(device_type)
        except RuntimeError:
            return False


def _has_kernel(operator: str, device_type: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, device_type.upper()))
    except RuntimeError:  # an operator that this PyTorch does not have
        return False


def _ask_fp32_switches() -> Fp32Switches:
    """The effective settings, whichever of PyTorch's two APIs made them.

    `fp32_precision` resolves what a setting inherits and can always be read. The older `allow_tf32` raises
    once both APIs were used, and warns on PyTorch 2.9.
    """
    backends: Any = torch.backends
    return Fp32Switches(
        cuda_matmul=backends.cuda.matmul.fp32_precision,
        cudnn_conv=backends.cudnn.conv.fp32_precision,
        cpu_matmul=backends.mkldnn.matmul.fp32_precision,
    )


def _nvidia_trace() -> str | None:
    """A sign of an NVIDIA GPU that does not need PyTorch: a device node, or the driver's tool (not run)."""
    nodes = sorted(glob.glob("/dev/nvidia[0-9]*"))
    return nodes[0] if nodes else shutil.which("nvidia-smi")


# Instruction sets worth naming: Linux's name for each, and the one in torch.cpu.get_capabilities().
_FEATURES = {
    **{name: name for name in ("avx2", "f16c", "avx_ne_convert", "avx512_bf16", "avx512_fp16")},
    **{name: name for name in ("amx_int8", "amx_bf16", "amx_fp16", "bf16", "i8mm", "sve", "sme")},
    "avx512f": "avx512_f",
    "asimdhp": "fp16_arith",
}


def _ask_cpu() -> CpuFacts:
    linux_model, linux_flags = _parse_cpuinfo(_read("/proc/cpuinfo"))
    asked = _torch_cpu_capabilities()
    return CpuFacts(
        model=linux_model or asked.get("cpu_name") or platform.processor() or "unknown CPU",
        architecture=platform.machine() or "unknown architecture",
        cores=os.cpu_count(),
        memory_bytes=_physical_memory(),
        vector_level=torch.backends.cpu.get_cpu_capability(),
        features=_cpu_flags(asked, linux_flags),
        onednn_float16=_onednn_takes("fp16"),
        onednn_bfloat16=_onednn_takes("bf16"),
    )


def _torch_cpu_capabilities() -> dict[str, Any]:
    ask = getattr(torch.cpu, "get_capabilities", None)  # not yet in PyTorch 2.9
    return dict(ask()) if ask else {}


def _cpu_flags(asked: dict[str, Any], linux_flags: frozenset[str]) -> tuple[str, ...] | None:
    if asked:
        return tuple(ours for ours, theirs in _FEATURES.items() if asked.get(theirs))
    return tuple(name for name in _FEATURES if name in linux_flags) if linux_flags else None


def _parse_cpuinfo(text: str) -> tuple[str | None, frozenset[str]]:
    """Model name and flags from the text of /proc/cpuinfo; x86 and Arm call the lines differently."""
    pairs = [[part.strip() for part in line.split(":", 1)] for line in text.splitlines() if ":" in line]
    model = next((value for key, value in pairs if key == "model name" and value), None)
    flags = next((value for key, value in pairs if key in ("flags", "Features")), "")
    return model, frozenset(flags.split())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # not Linux
        return ""


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def _onednn_takes(dtype: str) -> bool | None:
    mkldnn: Any = torch.backends.mkldnn
    if not mkldnn.is_available():
        return False
    try:
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")())
    except (AttributeError, RuntimeError):
        return None
