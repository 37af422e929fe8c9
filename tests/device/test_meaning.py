"""What facts mean, on machines that are not here."""

import pkgutil
import re
from dataclasses import replace
from importlib import import_module

import pytest

from amp_lab import device
from amp_lab.device import DeviceFacts, explain
from amp_lab.device.facts import Fp32Switches, GpuFacts
from amp_lab.device.meaning import _MEANINGS
from tests.device.machines import (
    AMD,
    CPUS,
    NVIDIA,
    SAPPHIRE_RAPIDS,
    ZEN_4,
    facts,
    kinds,
    nvidia,
    on_cpu,
    report,
    scenarios,
)


@pytest.mark.parametrize(("name", "capability", "fp16", "bf16", "tf32", "fp8"), NVIDIA)
def test_nvidia_gpus(
    name: str, capability: tuple[int, int], fp16: str, bf16: str, tf32: str, fp8: str
) -> None:
    expected = {"FP32": "native", "TF32": tf32, "FP16": fp16, "BF16": bf16, "FP8": fp8}
    assert kinds(facts(nvidia(name, capability))) == expected


@pytest.mark.parametrize(("chip", "fp16", "bf16", "fp8"), AMD)
def test_amd_gpus_are_not_read_as_compute_capabilities(chip: str, fp16: str, bf16: str, fp8: str) -> None:
    gpu = GpuFacts("amd", "AMD Instinct", 2**36, architecture=chip)
    expected = {"FP32": "native", "TF32": "unknown", "FP16": fp16, "BF16": bf16, "FP8": fp8}
    assert kinds(facts(gpu)) == expected
    assert "compute capability" not in str(report(facts(gpu)))


@pytest.mark.parametrize(("machine", "features", "fp16_on", "bf16_on", "fp16", "bf16", "tf32"), CPUS)
def test_cpus(
    machine: str,
    features: tuple[str, ...] | None,
    fp16_on: bool | None,
    bf16_on: bool | None,
    fp16: str,
    bf16: str,
    tf32: str,
) -> None:
    found = kinds(on_cpu(machine, features, fp16_on, bf16_on))
    assert (found["FP16"], found["BF16"], found["TF32"]) == (fp16, bf16, tf32)


def test_unknown_instruction_sets_are_called_unknown() -> None:
    assert "instruction sets unknown" in str(report(on_cpu("arm64", None, None, None)))


@pytest.mark.parametrize("known", scenarios())
def test_five_formats_each_with_one_finished_sentence(known: DeviceFacts) -> None:
    entries = explain(known)
    assert [entry.format for entry in entries] == ["FP32", "TF32", "FP16", "BF16", "FP8"]
    for entry in entries:
        assert re.fullmatch(r"[A-Zt][^{}]{20,}\.", entry.meaning), entry.meaning


def test_no_sentence_is_left_over() -> None:
    """Every sentence in the table is what some machine gets."""
    used = set()
    for known in scenarios():
        place = known.gpu.vendor if known.gpu else "cpu"
        for entry in explain(known):
            keys = [
                (place, entry.format, entry.kind),
                (place, "*", entry.kind),
                ("*", entry.format, entry.kind),
            ]
            used.add(next(key for key in keys if key in _MEANINGS))
    assert used == set(_MEANINGS)


def test_only_the_asking_files_can_ask() -> None:
    names = [module.name for module in pkgutil.iter_modules(device.__path__)]
    explaining = [name for name in names if not name.startswith("asking")]
    assert {"cpu_kinds", "gpu_kinds", "meaning", "remarks", "report"} < set(explaining)
    for name in explaining:
        inside = vars(import_module(f"amp_lab.device.{name}"))
        assert not {"torch", "platform", "os", "glob", "shutil"} & set(inside), name


@pytest.mark.parametrize(
    ("matmul", "conv", "said"),
    [
        ("none", "tf32", "Now off for matrix products and on for cuDNN convolutions"),
        ("tf32", "ieee", "Now on for matrix products and off for cuDNN convolutions"),
    ],
)
def test_tf32_says_how_its_switches_stand(matmul: str, conv: str, said: str) -> None:
    known = facts(nvidia(), fp32=Fp32Switches(matmul, conv, "none"))
    assert said in report(known).support("TF32").meaning


def test_fp32_on_a_cpu_says_when_its_products_are_shortened() -> None:
    medium = Fp32Switches("tf32", "tf32", "bf16")
    graviton_3 = on_cpu("aarch64", ("asimdhp", "bf16", "sve"), False, True)
    for shortens in (on_cpu("x86_64", SAPPHIRE_RAPIDS, True, True), graviton_3):
        known = replace(shortens, fp32=medium)
        assert "may be shortened to BF16 now" in report(known).support("FP32").meaning
    # AVX2 alone, and AVX512_BF16 without AMX, which PyTorch's matrix library does not use for FP32; and a GPU.
    for does_not in (facts(), on_cpu("AMD64", ZEN_4, False, True), facts(nvidia())):
        known = replace(does_not, fp32=medium)
        assert "shortened" not in report(known).support("FP32").meaning


def test_fp32_on_a_cpu_with_an_unknown_switch() -> None:
    unknown = Fp32Switches(None, None, None)
    said = "Whether FP32 matrix products are shortened now is unknown."
    amx = replace(on_cpu("x86_64", SAPPHIRE_RAPIDS, True, True), fp32=unknown)
    assert said in report(amx).support("FP32").meaning
    assert said not in report(facts(fp32=unknown)).support("FP32").meaning  # nothing there to shorten with
    # oneDNN's answer for FP16 shows whether it may use AMX: without it, AMX is not promised.
    assert kinds(on_cpu("x86_64", SAPPHIRE_RAPIDS, None, True))["BF16"] == "unknown"
