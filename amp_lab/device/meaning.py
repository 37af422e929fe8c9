"""From facts to one sentence per number format. Asks nothing."""

from amp_lab.device.cpu_kinds import can_shorten_fp32, cpu_kinds
from amp_lab.device.facts import AmpFacts, DeviceFacts, GpuFacts
from amp_lab.device.gpu_kinds import gpu_kinds
from amp_lab.device.support import FormatSupport, Kind

# What each kind of support means: (place, format, kind), "*" for any. Blanks are filled by `_values`.
_MEANINGS: dict[tuple[str, str, Kind], str] = {
    ("*", "FP32", "native"): "The usual format; the others are compared with it.{shortened}",
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
    ("nvidia", "BF16", "unknown"): ("{not_in_tables} {native}"),
    ("nvidia", "FP8", "tensor cores"): (
        "Fast on Tensor Cores through torch._scaled_mm or a library built on it; torch.autocast does not "
        "choose it."
    ),
    ("nvidia", "FP8", "storage only"): (
        "FP8 tensors can be kept and cast; torch._scaled_mm asks for compute capability 8.9 or newer."
    ),
    ("nvidia", "*", "unknown"): "{not_in_tables}",
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
    ("amd", "*", "unknown"): "{not_in_tables}",
    ("apple", "TF32", "none"): "A format of NVIDIA GPUs: the switches for it change nothing on an Apple GPU.",
    ("apple", "FP16", "vector units"): "Metal computes with 16-bit half; how much faster than FP32: measure.",
    ("apple", "BF16", "unknown"): (
        "{autocast_bf16} here; how this chip computes with it is not known: measure."
    ),
    ("apple", "FP8", "storage only"): "FP8 tensors can be kept on this GPU; fast arithmetic is not known.",
    (
        "apple",
        "FP8",
        "unknown",
    ): "Whether FP8 tensors can be kept on this GPU could not be found out: try it.",
    ("apple", "FP8", "none"): "PyTorch refuses FP8 tensors on this GPU.",
    ("cpu", "TF32", "none"): "A format of NVIDIA GPUs: the switches for it change nothing on a CPU.",
    ("cpu", "TF32", "unknown"): (
        "On CPUs with AMX-FP16 PyTorch can shorten FP32 products to TF32, if "
        "torch.backends.mkldnn.matmul.fp32_precision asks for it; whether that helps here: measure."
    ),
    ("cpu", "*", "matrix units"): (
        "The CPU has units (AMX) that multiply matrices of {name} and add in FP32: large products can be "
        "faster than in FP32."
    ),
    ("cpu", "*", "vector units"): (
        "The CPU computes with {name} directly; measure before you expect it to be faster than FP32."
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
        "FP8 tensors can be kept and multiplied as matrices, not added; this report knows of no CPU that "
        "computes with FP8 directly."
    ),
}


def explain(facts: DeviceFacts) -> tuple[FormatSupport, ...]:
    """Say what `facts` mean for FP32, TF32, FP16, BF16 and FP8, in this order. Asks nothing."""
    kinds = gpu_kinds(facts.gpu) if facts.gpu else cpu_kinds(facts.cpu)
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
        "shortened": "" if gpu else _shortened_on_cpu(facts),
        "matmul": _on_or_off(fp32.cuda_matmul),
        "conv": _on_or_off(fp32.cudnn_conv),
        "not_in_tables": _not_in_tables(gpu) if gpu else "",
        "native": _native_bf16(gpu) if gpu else "",
        "autocast_bf16": _autocast_bf16(facts.amp),
    }


def _on_or_off(switch: str | None) -> str:
    if switch is None:
        return "unknown"
    return "on" if switch == "tf32" else "off"


def _not_in_tables(gpu: GpuFacts) -> str:
    if gpu.capability:
        return f"Compute capability {gpu.capability_text} is not in the tables behind this report."
    if gpu.architecture:
        return f"The AMD chip {gpu.chip} is not in the table behind this report."
    return "Which chip this is could not be found out, and so what it can do is unknown: measure."


def _native_bf16(gpu: GpuFacts) -> str:
    if gpu.bf16_native is None:
        return "Whether PyTorch calls BF16 native here is unknown, too."
    return f"PyTorch says that BF16 is {'native' if gpu.bf16_native else 'not native'} here."


def _autocast_bf16(amp: AmpFacts) -> str:
    if amp.autocast_dtypes is None:
        return "It is unknown whether torch.autocast takes bfloat16"
    return f"torch.autocast {'takes' if 'bfloat16' in amp.autocast_dtypes else 'does not take'} bfloat16"


def _shortened_on_cpu(facts: DeviceFacts) -> str:
    """torch.set_float32_matmul_precision("medium") reaches the CPU too, where there is hardware for it."""
    short = facts.fp32.cpu_matmul
    if short is None and any(can_shorten_fp32(facts.cpu, name) for name in ("bf16", "tf32")):
        return " Whether FP32 matrix products are shortened now is unknown."
    if short is None or not can_shorten_fp32(facts.cpu, short):
        return ""
    return (
        f" But FP32 matrix products may be shortened to {short.upper()} now: "
        "torch.backends.mkldnn.matmul.fp32_precision says so."
    )
