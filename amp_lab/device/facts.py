"""The facts about a device, as asked: nothing is concluded here."""

from dataclasses import dataclass
from typing import Literal


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

    @property
    def name(self) -> str:
        """The model of the GPU, or of the CPU where the device is a CPU."""
        return self.gpu.name if self.gpu else self.cpu.model
