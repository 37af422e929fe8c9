"""amp_lab.device: what facts mean, on GPUs that are not here, and whether the facts asked here are true."""

import json
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from amp_lab import device as device_module
from amp_lab.device import (
    AmpFacts,
    CpuFacts,
    DeviceFacts,
    DeviceReport,
    Fp32Switches,
    GpuFacts,
    TorchFacts,
    describe_device,
    explain,
)

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
    ("x86_64", GRANITE_RAPIDS, True, True, "matrix units", "matrix units", "unknown"),
    ("x86_64", SAPPHIRE_RAPIDS, False, False, "slow", "slow", "none"),  # a build without oneDNN
    ("arm64", ("asimdhp",), False, False, "vector units", "slow", "none"),
    ("aarch64", ("asimdhp", "bf16", "sve"), False, True, "vector units", "vector units", "none"),
    ("arm64", None, None, None, "unknown", "unknown", "unknown"),  # macOS with PyTorch 2.9
    ("ppc64le", (), False, False, "unknown", "unknown", "none"),
]
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # torch 2.11.0 and 2.14.1 from PyPI


def facts(gpu: GpuFacts | None = None, **changes: object) -> DeviceFacts:
    name = {"nvidia": "cuda:0", "amd": "cuda:0", "apple": "mps"}[gpu.vendor] if gpu else "cpu"
    cpu = CpuFacts("Some CPU", "x86_64", 8, 2**34, "AVX2", AVX2, False, False)
    built = TorchFacts("2.13.0", "3.12.1", "Linux", None, None, False, True, 4)
    amp = AmpFacts(("float16", "bfloat16"), "float16", True)
    base = DeviceFacts(
        name, tuple(dict.fromkeys((name, "cpu"))), gpu, cpu, built, amp, Fp32Switches("none", "tf32", "none")
    )
    return replace(base, **changes)


def nvidia(name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0), **changes: object) -> GpuFacts:
    return replace(GpuFacts("nvidia", name, 150 * 2**30, capability=capability), **changes)


def on_cpu(
    machine: str, features: tuple[str, ...] | None, fp16: bool | None, bf16: bool | None
) -> DeviceFacts:
    cpu = CpuFacts("Some CPU", machine, 8, None, "DEFAULT", features, fp16, bf16)
    return facts(cpu=cpu)


def report(known: DeviceFacts) -> DeviceReport:
    return DeviceReport(known, explain(known))


def scenarios() -> list[DeviceFacts]:
    found = [facts(nvidia(name, capability)) for name, capability, *_ in NVIDIA]
    found += [facts(GpuFacts("amd", "AMD Instinct", 2**36, architecture=chip)) for chip, *_ in AMD]
    found += [facts(GpuFacts("apple", "Apple M2", 2**33, stores_fp8=stores)) for stores in (True, False)]
    found += [on_cpu(*cpu[:4]) for cpu in CPUS]
    return found


def kinds(known: DeviceFacts) -> dict[str, str]:
    return {entry.format: entry.kind for entry in explain(known)}


# ---------------------------------------------------------------- meaning


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
            used.add(next(key for key in keys if key in device_module._MEANINGS))
    assert used == set(device_module._MEANINGS)


def test_explaining_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [explain(known) for known in scenarios()]
    for module in ("torch", "platform", "os", "glob", "shutil"):
        monkeypatch.setattr(device_module, module, None)
    assert [explain(known) for known in scenarios()] == expected


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
    with_amx = replace(on_cpu("x86_64", SAPPHIRE_RAPIDS, True, True), fp32=medium)
    assert "may be shortened to BF16 now" in report(with_amx).support("FP32").meaning
    assert (
        "shortened" not in report(facts(fp32=medium)).support("FP32").meaning
    )  # AVX2 only: no hardware for it
    assert "shortened" not in report(facts(nvidia(), fp32=medium)).support("FP32").meaning


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((7, 0), CU130, False),
        ((7, 5), CU130, True),
        ((8, 9), CU130, True),
        ((12, 1), CU130, True),
        ((11, 0), CU130, False),
        ((11, 0), ("sm_90", "compute_90"), True),
        ((9, 0), ("sm_90a",), True),
        ((10, 3), ("sm_100a",), False),
        ((10, 3), ("sm_100f",), True),
        ((8, 0), ("sm_86",), False),
        ((6, 1), (), True),
        ((6, 1), ("gfx90a",), False),
    ],
)
def test_a_build_without_kernels_for_the_gpu_is_found(
    capability: tuple[int, int], built_for: tuple[str, ...], runs: bool
) -> None:
    found = report(facts(nvidia("Some GPU", capability, built_for=built_for)))
    assert ("has no kernels" in " ".join(found.notes())) is not runs
    assert ("Everything on Some GPU" in " ".join(found.not_run_here())) is not runs


def test_small_turing_is_warned_about() -> None:
    assert "no Tensor Cores" in report(facts(nvidia("NVIDIA GeForce GTX 1650", (7, 5)))).notes()[0]
    assert not report(facts(nvidia("Tesla T4", (7, 5)))).notes()


# ---------------------------------------------------------------- what is not run here


def test_an_h200_skips_only_what_needs_a_second_gpu() -> None:
    assert report(facts(nvidia())).not_run_here() == ("NCCL between GPUs: there is one GPU here.",)
    assert report(facts(nvidia(count=2))).not_run_here() == ()


def test_a_t4_names_the_formats_its_tensor_cores_do_not_take() -> None:
    first, *_ = report(facts(nvidia("Tesla T4", (7, 5)))).not_run_here()
    why = "Tesla T4's Tensor Cores (compute capability 7.5) are for other formats."
    assert first == f"Tensor Core speed in TF32, BF16, FP8: {why}"


def test_gpus_without_tensor_cores_say_so() -> None:
    pascal, *_ = report(facts(nvidia("NVIDIA GeForce GTX 1080", (6, 1)))).not_run_here()
    assert pascal.startswith("Tensor Core speed in TF32, FP16, BF16, FP8: ")
    assert pascal.endswith("(compute capability 6.1) has no Tensor Cores.")
    amd, *_ = report(
        facts(GpuFacts("amd", "AMD Instinct MI210", 2**36, architecture="gfx90a"))
    ).not_run_here()
    assert amd.endswith("AMD Instinct MI210 is not an NVIDIA GPU.")


def test_a_gpu_newer_than_the_tables_is_not_skipped() -> None:
    assert not any("Tensor Core" in text for text in report(facts(nvidia("Next", (99, 0)))).not_run_here())


@pytest.mark.parametrize("gpu", [None, GpuFacts("apple", "Apple M2", 2**33, stores_fp8=False)])
def test_machines_without_cuda_name_every_part(gpu: GpuFacts | None) -> None:
    skipped = report(facts(gpu)).not_run_here()
    topics = [text.partition(":")[0] for text in skipped]
    assert topics == [
        "Tensor Core speed in TF32, FP16, BF16, FP8",
        "CUDA memory numbers",
        "Finding host synchronisations",
        "NCCL",
    ]
    assert all(text.endswith(".") for text in skipped)


def test_cuda_without_nccl() -> None:
    without = replace(facts().torch, nccl=False)
    assert report(facts(nvidia(count=2), torch=without)).not_run_here() == (
        "NCCL: this PyTorch was built without it.",
    )


# ---------------------------------------------------------------- three ways to show it


class Rows(HTMLParser):
    """The texts of table rows and list items."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("tr", "li"):
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if not self.rows[-1]:
            self.rows[-1].append("")
        self.rows[-1][-1] += data


@pytest.mark.parametrize("known", scenarios())
def test_text_html_and_dict_say_the_same(known: DeviceFacts) -> None:
    shown = report(replace(known, warnings=("PyTorch said <this> & that.",)))
    text = " ".join(str(shown).split())
    plain = shown.as_dict()
    rows = Rows(shown._repr_html_()).rows
    for name, entry in plain["formats"].items():
        assert f"{name} {entry['kind']} {entry['meaning']}" in text
        assert [name, entry["kind"], entry["meaning"]] in rows
    for note in plain["notes"]:
        assert f"Note {note}" in text
        assert [note] in rows
    for label, value in (row for row in rows if len(row) == 2):
        assert f"{label} {value}" in text
    assert plain["name"] in text
    assert max(map(len, str(shown).splitlines())) <= 100
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_html_escapes_and_leaves_colours_to_the_theme() -> None:
    shown = report(facts(nvidia("<script>alert(1)</script> & Co")))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert not re.search(r"color|background|#[0-9a-f]{3}", shown)


def test_support_of_an_unknown_format() -> None:
    with pytest.raises(KeyError, match="FP4"):
        report(facts()).support("FP4")


# ---------------------------------------------------------------- asking, on machines that are not here


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, wherever this runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(device_module.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(device_module.shutil, "which", lambda tool: None)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch):
    """PyTorch as it answers on a machine with these NVIDIA GPUs: (name, (major, minor)) each."""

    def install(*gpus: tuple[str, tuple[int, int]], built_for: tuple[str, ...] = ()) -> None:
        current = [0]

        def properties(device: torch.device) -> SimpleNamespace:
            name, (major, minor) = gpus[torch.device(device).index]
            return SimpleNamespace(
                name=name, major=major, minor=minor, total_memory=16 * 2**30, gcnArchName=""
            )

        def is_bf16_supported(including_emulation: bool = True) -> bool:
            return including_emulation or gpus[current[0]][1][0] >= 8

        @contextmanager
        def on(device: torch.device):
            previous, current[0] = current[0], device.index
            yield
            current[0] = previous

        answers = {
            "is_available": lambda: True,
            "init": lambda: None,
            "device_count": lambda: len(gpus),
            "current_device": lambda: 0,
            "get_device_properties": properties,
            "get_arch_list": lambda: list(built_for),
            "is_bf16_supported": is_bf16_supported,
            "device": on,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch.version, "cuda", "13.0")

    return install


def test_cuda_is_asked_for_the_device_itself(fake_cuda) -> None:
    fake_cuda(("NVIDIA A100-SXM4-80GB", (8, 0)), ("Tesla T4", (7, 5)), built_for=CU130)
    best = describe_device()
    assert (best.device, best.name) == ("cuda:0", "NVIDIA A100-SXM4-80GB")
    second = describe_device("cuda:1").facts
    assert second.gpu == GpuFacts("nvidia", "Tesla T4", 16 * 2**30, 2, (7, 5), None, CU130, bf16_native=False)
    assert best.facts.gpu.bf16_native is True
    assert second.amp.autocast_dtypes == ("float16", "bfloat16")  # BF16 by emulation: PyTorch takes it
    assert second.amp.default_dtype == "float16"
    assert "Also here: cuda:0." in describe_device(torch.device("cuda", 1)).notes()
    assert "Also here: cuda:0, cuda:1." in describe_device("cpu").notes()


def test_rocm_answers_through_torch_cuda(fake_cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(("AMD Instinct MI300X", (9, 4)))
    chip = SimpleNamespace(
        name="AMD Instinct MI300X", major=9, minor=4, total_memory=2**37, gcnArchName="gfx942:sramecc+:xnack-"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    found = describe_device()
    assert found.facts.gpu == GpuFacts("amd", chip.name, 2**37, 1, architecture=chip.gcnArchName)
    assert "built for ROCm 6.4" in str(found)
    assert "AMD chip gfx942" in str(found)


def test_apple_gpu(no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M2")
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**33)
    found = describe_device()
    assert (found.device, found.name) == ("mps", "Apple M2")
    assert found.facts.gpu == GpuFacts("apple", "Apple M2", 2**33, stores_fp8=False)
    assert "8.0 GiB shared with the CPU" in str(found)
    assert describe_device("mps:0").device == "mps"


def test_a_cuda_build_without_a_gpu(no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device_module.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = describe_device()
    assert found.device == "cpu"
    assert found.notes()[:3] == (
        "This PyTorch is built for CUDA 13.0, but no usable GPU was found.",
        "CUDA_VISIBLE_DEVICES is '': it may hide GPUs from PyTorch.",
        "But /dev/nvidia0 is there: is the driver new enough? nvidia-smi shows which CUDA it supports.",
    )
    assert found.notes()[-1] == "CUDA initialization: The NVIDIA driver on your system is too old"
    with pytest.raises(ValueError, match=r"Here there is: cpu\. PyTorch says: CUDA initialization"):
        describe_device("cuda")


def test_a_driver_that_does_not_start(no_gpu, fake_cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment")

    fake_cuda(("Tesla T4", (7, 5)))
    monkeypatch.setattr(torch.cuda, "init", init)
    found = describe_device()
    assert found.device == "cpu"
    assert "no usable GPU was found" in found.notes()[0]
    assert found.notes()[-1].startswith("CUDA could not be started: CUDA unknown error")


def test_a_cpu_build_beside_an_nvidia_gpu(no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("GPU seems present" in note for note in describe_device().notes())
    monkeypatch.setattr(device_module.shutil, "which", {"nvidia-smi": "/usr/bin/nvidia-smi"}.get)
    seen, advice = "A GPU seems present (/usr/bin/nvidia-smi)", "install a CUDA build to use it."
    assert describe_device().notes()[0] == f"{seen} but this PyTorch is a CPU build: {advice}"


def test_mps_and_rocm_builds_without_their_gpu() -> None:
    built = facts().torch
    assert (
        report(facts(torch=replace(built, mps=True)))
        .notes()[0]
        .startswith("This PyTorch is built with MPS, but")
    )
    assert (
        "built for ROCm 6.4, but no usable GPU" in report(facts(torch=replace(built, rocm="6.4"))).notes()[0]
    )


def test_deprecations_are_not_the_users_business(no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("old spelling", DeprecationWarning, stacklevel=1)
        warnings.warn("GPU 0 is\n  too old", UserWarning, stacklevel=1)
        warnings.warn("GPU 0 is\n  too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    assert describe_device().facts.warnings == ("GPU 0 is too old",)


# ---------------------------------------------------------------- asking, on this machine


@pytest.mark.parametrize(
    "name", ["gpu", "", "CPU", "cuda:-1", "cuda:", "cpu:1", "cpu:x", "meta", "xpu", "mps:3"]
)
def test_a_device_that_is_not_here(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^.*{name!r}.*Here there is: .*cpu\."):
        describe_device(name)


@pytest.mark.parametrize("name", ["cuda:99", "cuda:256", "cuda:99999999999999999999"])
def test_an_index_past_the_last_gpu(fake_cuda, name: str) -> None:
    fake_cuda(("Tesla T4", (7, 5)))
    with pytest.raises(ValueError, match=rf"{name}.* Here there is: cuda:0, cpu\."):
        describe_device(name)


@pytest.mark.parametrize("wrong", [0, 1.5, b"cpu", ["cpu"], True, torch.float16])
def test_something_that_is_no_device(wrong: object) -> None:
    with pytest.raises(TypeError, match=re.escape(repr(wrong))):
        describe_device(wrong)


def test_three_spellings_of_the_cpu() -> None:
    reports = [describe_device(name) for name in ("cpu", "cpu:0", torch.device("cpu"))]
    assert len({found.device for found in reports}) == 1
    assert reports[0] == reports[1] == reports[2]


def test_cpu_flags_agree_with_the_kernel() -> None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        pytest.skip("no /proc/cpuinfo on this system: nothing to compare with")
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", path.read_text(), re.MULTILINE)
    assert line, "cpuinfo without flags"
    known = set(device_module._FEATURES)
    cpu = describe_device("cpu").facts.cpu
    assert set(cpu.features) == known & set(line[1].split())
    assert set(device_module._cpu_flags({}, frozenset(line[1].split()))) == set(cpu.features)


def test_cpuinfo_of_an_arm_server() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd asimdhp sve bf16 i8mm\nCPU implementer\t: 0x41\n"
    model, flags = device_module._parse_cpuinfo(text)
    assert model is None
    assert device_module._cpu_flags({}, flags) == ("bf16", "i8mm", "sve", "asimdhp")
    assert device_module._parse_cpuinfo("") == (None, frozenset())
    assert device_module._cpu_flags({}, frozenset()) is None


def test_what_it_says_of_amp_on_the_cpu_is_so() -> None:
    amp = describe_device("cpu").facts.amp
    weight, steps = torch.ones(1, requires_grad=True), []
    # What GradScaler needs of an optimizer; a real one imports torch._dynamo, for seconds.
    optimizer = SimpleNamespace(
        param_groups=[{"params": [weight]}], step=lambda: steps.append(weight.grad.item())
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (3.0, torch.inf):
        weight.grad = None
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert amp.grad_scaler is (steps == [3.0] and scaler.get_scale() == 2.0)
    for name in ("float16", "bfloat16"):
        with torch.autocast("cpu", dtype=getattr(torch, name)):
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert (product.dtype is getattr(torch, name)) is (name in amp.autocast_dtypes)
    with torch.autocast("cpu"):
        assert str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype) == f"torch.{amp.default_dtype}"


def test_an_autocast_dtype_that_pytorch_only_warns_about_is_not_taken() -> None:
    assert not device_module._autocast_takes("cpu", "float32")
    assert not device_module._autocast_takes("meta", "float16")


def test_a_missing_operator_is_no_kernel() -> None:
    assert not device_module._has_kernel("aten::_no_such_operator", "cpu")


def test_what_it_says_of_fp8_on_the_cpu_is_so() -> None:
    assert describe_device("cpu").support("FP8").kind == "emulated"
    small, one = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.tensor(1.0)
    for refused in (lambda: small + small, small.sum):
        with pytest.raises(NotImplementedError, match="not implemented"):
            refused()
    sixteen = torch.full((16, 16), 16.0)
    assert torch.equal((small @ small).float(), sixteen)
    assert torch.equal(torch._scaled_mm(small, small.t(), one, one, out_dtype=torch.float32), sixteen)


@pytest.fixture
def fp32_settings():
    """Puts the process-wide FP32 settings back; the older API warns on PyTorch 2.9."""
    places = [
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,
        torch.backends.mkldnn.matmul,
        torch.backends,
    ]
    before = [place.fp32_precision for place in places]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
    for place, value in zip(places, before, strict=True):
        place.fp32_precision = value


def test_defaults_and_both_apis_of_the_fp32_switches(fp32_settings) -> None:
    def found() -> tuple[str, str, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            known = describe_device("cpu").facts
        assert known.warnings == ()
        return known.fp32.cuda_matmul, known.fp32.cudnn_conv, known.fp32.cpu_matmul

    assert found() == ("none", "tf32", "none")
    torch.backends.cuda.matmul.allow_tf32 = True
    assert found() == ("tf32", "tf32", "none")
    torch.backends.cudnn.allow_tf32 = False
    assert found() == ("tf32", "none", "none")
    torch.backends.cuda.matmul.fp32_precision = "ieee"  # now both APIs were used, and allow_tf32 raises
    with pytest.raises(RuntimeError, match="mix of the legacy and new API"):
        _ = torch.backends.cuda.matmul.allow_tf32
    assert found() == ("ieee", "none", "none")
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.set_float32_matmul_precision("medium")
    assert found() == ("tf32", "tf32", "bf16")


def test_shortened_fp32_products_on_this_cpu(fp32_settings) -> None:
    """What the FP32 sentence says about BF16 is what a product does."""
    torch.manual_seed(0)
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    exact = left @ right
    torch.set_float32_matmul_precision("medium")
    changed = (left @ right - exact).abs().max().item() > 1e-2
    assert ("may be shortened to BF16" in describe_device("cpu").support("FP32").meaning) is changed


def test_asking_leaves_everything_as_it_was() -> None:
    def state() -> tuple[object, ...]:
        autocast = (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        )
        return (*autocast, torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed())

    for region in (
        nullcontext(),
        torch.autocast("cpu", dtype=torch.float16),
        torch.autocast("cpu", enabled=False),
    ):
        with region:
            before, random = state(), torch.get_rng_state()
            describe_device()
            assert state() == before
            assert torch.equal(torch.get_rng_state(), random)


def test_inside_no_grad_and_other_defaults() -> None:
    outside = describe_device("cpu").formats
    with torch.inference_mode(), torch.device("meta"):
        assert describe_device("cpu").formats == outside


def test_import_is_light_and_a_report_is_silent() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import amp_lab.device as d;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "assert new <= {'amp_lab'}, new;"
        "r = d.describe_device(); assert str(r) and r._repr_html_() and r.as_dict()"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
