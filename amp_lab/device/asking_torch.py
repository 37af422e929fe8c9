"""What PyTorch says about itself, its GPUs, and AMP on them."""

import contextlib
import platform
import warnings
from dataclasses import replace
from typing import Any

import torch

from amp_lab.device.facts import AmpFacts, Fp32Switches, GpuFacts, TorchFacts


def ask_torch() -> TorchFacts:
    """The installed PyTorch, and the Python and system under it."""
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


def ask_gpu(device: torch.device) -> GpuFacts | None:
    """The GPU behind `device`, which is here; None for a CPU."""
    if device.type == "cuda":
        return _ask_cuda(device)
    return _ask_mps(device) if device.type == "mps" else None


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


def ask_amp(device: torch.device) -> AmpFacts:
    """Which dtypes autocast takes, and whether GradScaler has its operators, on this device type."""
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with current:
        dtypes = tuple(name for name in ("float16", "bfloat16") if autocast_takes(device.type, name))
    default = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.") if dtypes else None
    # GradScaler's two operators. A real step would start CUDA's context and allocate memory.
    needed = ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_")
    return AmpFacts(dtypes, default, all(has_operator(operator, device.type) for operator in needed))


def autocast_takes(device_type: str, dtype: str) -> bool:
    """Enter an empty region and look whether autocast is on in it: for a wrong dtype PyTorch only warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast(device_type, dtype=getattr(torch, dtype)):
                return torch.is_autocast_enabled(device_type)
        except RuntimeError:
            return False


def has_operator(operator: str, device_type: str) -> bool:
    """Whether PyTorch's dispatcher has an implementation of "aten::name" for a device type."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, device_type.upper()))
    except RuntimeError:  # an operator that this PyTorch does not have
        return False


def ask_fp32_switches() -> Fp32Switches:
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
