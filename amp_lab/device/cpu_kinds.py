"""The kind of support per number format on a CPU.

The instruction sets: Intel, *Intrinsics Guide*: AVX512_BF16, AVX512_FP16, AMX-BF16, AMX-FP16. Arm,
*Architecture Reference Manual*: FEAT_FP16, FEAT_BF16.
"""

from amp_lab.device.facts import CpuFacts
from amp_lab.device.support import Kind

# Per format and processor family: the flag of the matrix unit (or None) and of the vector arithmetic.
_FLAGS: dict[tuple[str, str], tuple[str | None, str]] = {
    ("FP16", "x86"): ("amx_fp16", "avx512_fp16"),
    ("BF16", "x86"): ("amx_bf16", "avx512_bf16"),
    ("FP16", "arm"): (None, "asimdhp"),
    ("BF16", "arm"): (None, "bf16"),
}
_FAMILIES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}


def cpu_kinds(cpu: CpuFacts) -> dict[str, Kind]:
    """The kind of support per format, in the order in which the report shows them."""
    may_have_tf32 = cpu.features is None or "amx_fp16" in cpu.features
    return {
        "FP32": "native",
        "TF32": "unknown" if may_have_tf32 else "none",
        "FP16": _kind_of_16_bit("FP16", cpu),
        "BF16": _kind_of_16_bit("BF16", cpu),
        "FP8": "emulated",
    }


def can_shorten_fp32(cpu: CpuFacts, short: str) -> bool:
    """Whether PyTorch has the hardware here to compute FP32 products in "bf16" or "tf32" when told to.

    On x86 that is AMX alone: oneDNN does not use AVX512_BF16 for it.
    """
    if short == "tf32":
        return _kind_of_16_bit("FP16", cpu) == "matrix units"
    bf16 = _kind_of_16_bit("BF16", cpu)
    return short == "bf16" and (bf16 == "matrix units" or (bf16 == "vector units" and _family(cpu) == "arm"))


def _family(cpu: CpuFacts) -> str:
    return _FAMILIES.get((cpu.architecture or "").lower(), "")


def _kind_of_16_bit(name: str, cpu: CpuFacts) -> Kind:
    family = _family(cpu)
    onednn = {"FP16": cpu.onednn_float16, "BF16": cpu.onednn_bfloat16}[name]
    if cpu.features is None or (name, family) not in _FLAGS:
        return "unknown"
    matrix, vector = _FLAGS[name, family]
    if family == "arm" and vector in cpu.features:  # there are kernels beside oneDNN's
        return "vector units"
    if onednn is None:
        return "unknown"
    # An x86 flag helps only where PyTorch's matrix library uses it.
    if onednn and matrix in cpu.features and cpu.onednn_float16 is not False:
        # oneDNN counts AMX as a step above AVX512_FP16. The environment variable ONEDNN_MAX_CPU_ISA can stop
        # it below both, and its answer for FP16 shows that.
        return "matrix units" if cpu.onednn_float16 else "unknown"
    if onednn and vector in cpu.features:
        return "vector units"
    return "emulated" if onednn else "slow"
