"""What is known about the processor, and about GPUs that PyTorch does not see."""

import glob
import os
import platform
import shutil
from typing import Any

import torch

from amp_lab.device.asking_safely import asked
from amp_lab.device.facts import CpuFacts

# Instruction sets worth naming: Linux's name for each, and the one in torch.cpu.get_capabilities().
_SAME_NAME = "avx2 f16c avx_ne_convert avx512_bf16 avx512_fp16 amx_int8 amx_bf16 amx_fp16 bf16 i8mm sve sme"
FEATURES = {name: name for name in _SAME_NAME.split()} | {"avx512f": "avx512_f", "asimdhp": "fp16_arith"}


def nvidia_trace() -> str | None:
    """A sign of an NVIDIA GPU that does not need PyTorch: a device node, or the driver's tool (not run)."""
    nodes = asked("whether there is a /dev/nvidia*", lambda: sorted(glob.glob("/dev/nvidia[0-9]*")))
    return nodes[0] if nodes else asked("whether there is an nvidia-smi", lambda: shutil.which("nvidia-smi"))


def ask_cpu() -> CpuFacts:
    """The processor, from PyTorch where it knows, and else from the operating system."""
    linux_model, linux_flags = parse_cpuinfo(asked("what /proc/cpuinfo says", _cpuinfo) or "")
    capabilities = asked("the CPU's capabilities in PyTorch", _torch_cpu_capabilities) or {}
    model = linux_model or capabilities.get("cpu_name")
    return CpuFacts(
        model=model or asked("what CPU this is", lambda: platform.processor() or None),
        architecture=asked("the CPU's architecture", lambda: platform.machine() or None),
        cores=asked("the number of CPU cores", lambda: os.cpu_count()),
        memory_bytes=asked("the size of the memory", _physical_memory),
        vector_level=asked(
            "the instruction set of PyTorch's CPU kernels", lambda: torch.backends.cpu.get_cpu_capability()
        ),
        features=cpu_features(capabilities, linux_flags),
        onednn_float16=asked("whether oneDNN takes FP16 here", lambda: _onednn_takes("fp16")),
        onednn_bfloat16=asked("whether oneDNN takes BF16 here", lambda: _onednn_takes("bf16")),
    )


def parse_cpuinfo(text: str) -> tuple[str | None, frozenset[str]]:
    """Model name and flags from the text of /proc/cpuinfo; x86 and Arm call the lines differently."""
    pairs = [[part.strip() for part in line.split(":", 1)] for line in text.splitlines() if ":" in line]
    model = next((value for key, value in pairs if key == "model name" and value), None)
    flags = next((value for key, value in pairs if key in ("flags", "Features")), "")
    return model, frozenset(flags.split())


def cpu_features(asked: dict[str, Any], linux_flags: frozenset[str]) -> tuple[str, ...] | None:
    """Which of `FEATURES` are here, by PyTorch's answer or, without one, Linux's; None without either."""
    if asked:
        return tuple(ours for ours, theirs in FEATURES.items() if asked.get(theirs))
    return tuple(name for name in FEATURES if name in linux_flags) if linux_flags else None


def _torch_cpu_capabilities() -> dict[str, Any]:
    ask = getattr(torch.cpu, "get_capabilities", None)  # not yet in PyTorch 2.9
    return dict(ask()) if ask else {}


def _cpuinfo() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:  # not Linux
        return ""


def _physical_memory() -> int | None:
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _onednn_takes(dtype: str) -> bool:
    mkldnn: Any = torch.backends.mkldnn
    return bool(mkldnn.is_available() and getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")())
