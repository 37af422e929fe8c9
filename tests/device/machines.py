"""Machines to explain that are not here, with what is published about them."""

from dataclasses import replace

from amp_lab.device import DeviceFacts, DeviceReport, explain
from amp_lab.device.facts import AmpFacts, CpuFacts, Fp32Switches, GpuFacts, TorchFacts

# Capabilities: NVIDIA, "CUDA GPU Compute Capability". Formats: CUDA Programming Guide, table of Tensor Core
# input types (7.5 to 12.x), Tesla V100 white paper (7.0), arithmetic throughput table (below 7.0).
#  name, capability, FP16, BF16, TF32, FP8
NVIDIA = [
    ("Tesla M40", (5, 2), "emulated", "emulated", "none", "storage only"),
    ("Tesla P100-PCIE-16GB", (6, 0), "vector units", "emulated", "none", "storage only"),
    ("NVIDIA GeForce GTX 1080", (6, 1), "slow", "emulated", "none", "storage only"),
    ("Tesla V100-SXM2-16GB", (7, 0), "tensor cores", "emulated", "none", "storage only"),
    ("Tesla T4", (7, 5), "tensor cores", "emulated", "none", "storage only"),
    ("NVIDIA GeForce RTX 2080 Ti", (7, 5), "tensor cores", "emulated", "none", "storage only"),
    ("NVIDIA GeForce GTX 1660 SUPER", (7, 5), "vector units", "emulated", "none", "storage only"),
    ("NVIDIA T1000 8GB", (7, 5), "vector units", "emulated", "none", "storage only"),
    ("NVIDIA A100-SXM4-80GB", (8, 0), "tensor cores", "tensor cores", "tensor cores", "storage only"),
    ("NVIDIA GeForce RTX 3090", (8, 6), "tensor cores", "tensor cores", "tensor cores", "storage only"),
    ("NVIDIA GeForce RTX 4090", (8, 9), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA L4", (8, 9), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA H100 80GB HBM3", (9, 0), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA H200", (9, 0), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA B200", (10, 0), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA GeForce RTX 5090", (12, 0), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA GB10", (12, 1), "tensor cores", "tensor cores", "tensor cores", "tensor cores"),
    ("NVIDIA Next", (99, 0), "unknown", "unknown", "unknown", "unknown"),
]
# AMD, ROCm documentation, "Data types and precision support", matrix cores. FP16, BF16, FP8.
AMD = [
    ("gfx90a:sramecc+:xnack-", "matrix units", "matrix units", "storage only"),
    ("gfx942:sramecc+:xnack-", "matrix units", "matrix units", "matrix units"),
    ("gfx1030", "unknown", "unknown", "unknown"),
]
AVX2 = ("avx2", "f16c")
AVX512 = (*AVX2, "avx512f")
ZEN_4 = (*AVX512, "avx512_bf16")
SAPPHIRE_RAPIDS = (*ZEN_4, "avx512_fp16", "amx_int8", "amx_bf16")
GRANITE_RAPIDS = (*SAPPHIRE_RAPIDS, "amx_fp16")
# machine, features, oneDNN takes FP16, oneDNN takes BF16; FP16, BF16, TF32. What oneDNN takes was asked on
# one CPU under ONEDNN_MAX_CPU_ISA = AVX2, AVX512_CORE and without; "slow" products took about 80 times FP32's
# time there, "emulated" ones 6 times.
CPUS = [
    ("x86_64", AVX2, False, False, "slow", "slow", "none"),
    ("x86_64", AVX512, False, True, "slow", "emulated", "none"),
    ("AMD64", ZEN_4, False, True, "slow", "vector units", "none"),
    ("x86_64", SAPPHIRE_RAPIDS, True, True, "vector units", "matrix units", "none"),
    ("x86_64", SAPPHIRE_RAPIDS, False, True, "slow", "vector units", "none"),  # kept from AMX, see above
    ("x86_64", GRANITE_RAPIDS, True, True, "matrix units", "matrix units", "unknown"),
    ("x86_64", SAPPHIRE_RAPIDS, False, False, "slow", "slow", "none"),  # a build without oneDNN
    ("arm64", ("asimdhp",), False, False, "vector units", "slow", "none"),
    ("aarch64", ("asimdhp", "bf16", "sve"), False, True, "vector units", "vector units", "none"),
    ("arm64", None, None, None, "unknown", "unknown", "unknown"),  # macOS with PyTorch 2.9
    # A question about oneDNN that failed.
    ("x86_64", SAPPHIRE_RAPIDS, None, True, "unknown", "unknown", "none"),
    ("x86_64", AVX2, None, None, "unknown", "unknown", "none"),
    ("arm64", ("asimdhp",), None, None, "vector units", "unknown", "none"),
    (None, AVX2, True, True, "unknown", "unknown", "none"),
    ("ppc64le", (), False, False, "unknown", "unknown", "none"),
]
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # torch 2.11.0 and 2.14.1 from PyPI


def facts(gpu: GpuFacts | None = None, **changes: object) -> DeviceFacts:
    name = {"nvidia": "cuda:0", "amd": "cuda:0", "apple": "mps"}[gpu.vendor] if gpu else "cpu"
    cpu = CpuFacts("Some CPU", "x86_64", 8, 2**34, "AVX2", AVX2, False, False)
    built = TorchFacts("2.13.0", "3.12.1", "Linux", "", "", False, True, 4)
    amp = AmpFacts(("float16", "bfloat16"), "float16", True)
    base = DeviceFacts(
        name, tuple(dict.fromkeys((name, "cpu"))), gpu, cpu, built, amp, Fp32Switches("none", "tf32", "none")
    )
    return replace(base, **changes)


def nvidia(name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0), **changes: object) -> GpuFacts:
    return replace(GpuFacts("nvidia", name, 150 * 2**30, capability=capability), **changes)


def on_cpu(
    machine: str | None, features: tuple[str, ...] | None, fp16: bool | None, bf16: bool | None
) -> DeviceFacts:
    cpu = CpuFacts("Some CPU", machine, 8, None, "DEFAULT", features, fp16, bf16)
    return facts(cpu=cpu)


def report(known: DeviceFacts) -> DeviceReport:
    return DeviceReport(known, explain(known))


def scenarios() -> list[DeviceFacts]:
    found = [facts(nvidia(name, capability)) for name, capability, *_ in NVIDIA]
    found += [facts(GpuFacts("amd", "AMD Instinct", 2**36, architecture=chip)) for chip, *_ in AMD]
    found += [
        facts(GpuFacts("apple", "Apple M2", 2**33, stores_fp8=stores)) for stores in (True, False, None)
    ]
    found += [on_cpu(*cpu[:4]) for cpu in CPUS]
    return found


def kinds(known: DeviceFacts) -> dict[str, str]:
    return {entry.format: entry.kind for entry in explain(known)}
