"""The facts about a device, as asked: nothing is concluded here.

None stands for a question without an answer, unless a field says what else it means.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CpuFacts:
    """The processor. Memory is in bytes; `cores` counts logical ones.

    `vector_level` is the instruction set of PyTorch's own CPU kernels. `features` are the low-precision
    instruction sets, named as in Linux's /proc/cpuinfo; None means that nobody could be asked. `onednn_*` is
    PyTorch's answer to whether its matrix library takes that dtype on this CPU.
    """

    model: str | None
    architecture: str | None
    cores: int | None
    memory_bytes: int | None
    vector_level: str | None
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
    name: str | None
    memory_bytes: int | None
    count: int = 1
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    built_for: tuple[str, ...] | None = ()
    bf16_native: bool | None = None
    stores_fp8: bool | None = None

    @property
    def capability_text(self) -> str:
        """The compute capability as NVIDIA writes it, for example "8.6"."""
        return "{}.{}".format(*self.capability) if self.capability else "unknown"

    @property
    def chip(self) -> str:
        """AMD's chip without its settings: gfx90a of gfx90a:sramecc+:xnack-."""
        return (self.architecture or "of unknown name").partition(":")[0]


@dataclass(frozen=True)
class TorchFacts:
    """The installed PyTorch. `cuda` and `rocm` are the versions it was built for, "" for other builds."""

    version: str | None
    python: str | None
    system: str | None
    cuda: str | None
    rocm: str | None
    mps: bool | None
    nccl: bool | None
    threads: int | None


@dataclass(frozen=True)
class AmpFacts:
    """What `torch.autocast` and `torch.amp.GradScaler` do on this device type.

    `autocast_dtypes` is () where autocast takes no 16-bit dtype; there is no `default_dtype` then.
    """

    autocast_dtypes: tuple[str, ...] | None
    default_dtype: str | None
    grad_scaler: bool | None


@dataclass(frozen=True)
class Fp32Switches:
    """What FP32 products may be shortened to right now: "tf32", "bf16", or not at all ("none", "ieee")."""

    cuda_matmul: str | None
    cudnn_conv: str | None
    cpu_matmul: str | None


@dataclass(frozen=True)
class DeviceFacts:
    """Everything that was asked about one device.

    `present` names the devices that PyTorch says it can use here, `warnings` is what it warned of while it was
    asked and which questions failed, `nvidia_seen` a trace of an NVIDIA GPU outside PyTorch (None: none found),
    `cuda_visible_devices` that environment variable (None: not set).
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

    @property
    def name(self) -> str:
        """The model of the GPU, or of the CPU where the device is a CPU."""
        if self.gpu:
            return self.gpu.name or "unknown GPU"
        return self.cpu.model or "unknown CPU"
