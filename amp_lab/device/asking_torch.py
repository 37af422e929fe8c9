"""What PyTorch says about itself, its GPUs, and AMP on them."""

import contextlib
import platform
import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch

from amp_lab.device.asking_safely import asked
from amp_lab.device.facts import AmpFacts, Fp32Switches, GpuFacts, TorchFacts


def ask_torch() -> TorchFacts:
    """The installed PyTorch, and the Python and system under it."""
    return TorchFacts(
        version=asked("PyTorch's version", lambda: str(torch.__version__)),
        python=asked("Python's version", platform.python_version),
        system=asked("the operating system", platform.platform),
        cuda=asked("whether PyTorch is built for CUDA", lambda: torch.version.cuda or ""),
        rocm=asked("whether PyTorch is built for ROCm", lambda: torch.version.hip or ""),
        mps=asked("whether PyTorch is built with MPS", lambda: torch.backends.mps.is_built()),
        nccl=asked("whether PyTorch is built with NCCL", _has_nccl),
        threads=asked("the number of PyTorch's threads", lambda: torch.get_num_threads()),
    )


def _has_nccl() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_nccl_available()


def ask_gpu(device: torch.device, built: TorchFacts, count: int) -> GpuFacts | None:
    """The GPU behind `device`, which is here, one of `count`; None for a CPU."""
    if device.type == "cuda":
        # ROCm answers through torch.cuda, too.
        return _ask_amd(device, count) if built.rocm or built.cuda == "" else _ask_nvidia(device, count)
    return _ask_mps(device) if device.type == "mps" else None


def _ask_nvidia(device: torch.device, count: int) -> GpuFacts:
    name, memory, *capability = _properties(device, "name", "total_memory", "major", "minor")
    return GpuFacts(
        "nvidia",
        name,
        memory,
        count,
        capability=None if None in capability else (capability[0], capability[1]),
        built_for=asked("which GPUs PyTorch has kernels for", lambda: tuple(torch.cuda.get_arch_list())),
        bf16_native=asked("whether PyTorch calls BF16 native here", lambda: _bf16_is_native(device)),
    )


def _ask_amd(device: torch.device, count: int) -> GpuFacts:
    # major and minor are there as well, but they are not NVIDIA's compute capability.
    name, memory, chip = _properties(device, "name", "total_memory", "gcnArchName")
    return GpuFacts("amd", name, memory, count, architecture=chip)


def _properties(device: torch.device, *names: str) -> tuple[Any, ...]:
    """These fields of the GPU's properties, all or none: a capability means little without the name."""

    def question() -> tuple[Any, ...]:
        properties = torch.cuda.get_device_properties(device)
        return tuple(getattr(properties, name) for name in names)

    return asked("what GPU this is", question) or (None,) * len(names)


def _bf16_is_native(device: torch.device) -> bool:
    with _current(device):  # is_bf16_supported speaks of the current device
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _ask_mps(device: torch.device) -> GpuFacts:
    return GpuFacts(
        "apple",
        asked("what GPU this is", lambda: torch.backends.mps.get_name()),
        asked("the GPU's memory", lambda: torch.mps.recommended_max_memory()),
        stores_fp8=asked("whether this GPU keeps FP8 tensors", lambda: _stores_fp8(device)),
    )


def _stores_fp8(device: torch.device) -> bool:
    try:
        torch.empty(1, dtype=torch.float8_e4m3fn, device=device)
    except TypeError:  # how MPS refuses a dtype
        return False
    return True


def ask_amp(device: torch.device) -> AmpFacts:
    """Which dtypes autocast takes, and whether GradScaler has its operators, on this device type."""
    dtypes = asked("which dtypes torch.autocast takes", lambda: _autocast_dtypes(device))
    return AmpFacts(
        dtypes,
        None
        if dtypes == ()
        else asked("torch.autocast's default dtype", lambda: _default_dtype(device.type)),
        asked("whether GradScaler works", lambda: _has_grad_scaler(device.type)),
    )


def _autocast_dtypes(device: torch.device) -> tuple[str, ...]:
    with _current(device):
        return tuple(name for name in ("float16", "bfloat16") if autocast_takes(device.type, name))


def autocast_takes(device_type: str, dtype: str) -> bool:
    """Enter an empty region and look whether autocast is on in it: for a wrong dtype PyTorch only warns.

    Only for BF16 on an old CUDA device PyTorch raises; any other error is no answer and goes on to the caller.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast(device_type, dtype=getattr(torch, dtype)):
                return torch.is_autocast_enabled(device_type)
        except RuntimeError as error:
            if f"does not support {dtype}" in str(error):
                return False
            raise


def _default_dtype(device_type: str) -> str:
    return str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")


def _has_grad_scaler(device_type: str) -> bool:
    # GradScaler's two operators. A real step would start CUDA's context and allocate memory.
    needed = ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_")
    return all(has_operator(operator, device_type) for operator in needed)


def has_operator(operator: str, device_type: str) -> bool:
    """Whether PyTorch's dispatcher has an implementation of "aten::name" for a device type.

    RuntimeError if this PyTorch has no such operator: it may do the work by another name.
    """
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, device_type.upper()))


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one; for other devices, nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def ask_fp32_switches() -> Fp32Switches:
    """The effective settings, whichever of PyTorch's two APIs made them.

    `fp32_precision` resolves what a setting inherits and can always be read. The older `allow_tf32` raises
    once both APIs were used, and warns on PyTorch 2.9.
    """
    backends: Any = torch.backends
    return Fp32Switches(
        cuda_matmul=asked(
            "whether TF32 is on for matrix products", lambda: backends.cuda.matmul.fp32_precision
        ),
        cudnn_conv=asked("whether TF32 is on for convolutions", lambda: backends.cudnn.conv.fp32_precision),
        cpu_matmul=asked(
            "whether the CPU shortens FP32 products", lambda: backends.mkldnn.matmul.fp32_precision
        ),
    )
