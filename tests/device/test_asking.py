"""Which device is meant, and what is asked on machines that are not here."""

import glob
import re
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch

from amp_lab.device import describe_device
from amp_lab.device.asking_system import cpu_features, parse_cpuinfo
from amp_lab.device.asking_torch import autocast_takes
from amp_lab.device.facts import GpuFacts
from tests.device.machines import CU130


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


def test_apple_gpu(apple_gpu) -> None:
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
    monkeypatch.setattr(glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = describe_device()
    assert found.device == "cpu"
    assert found.notes()[:3] == (
        "This PyTorch is built for CUDA 13.0, but no usable GPU was found.",
        "CUDA_VISIBLE_DEVICES is '': it may hide GPUs from PyTorch.",
        "But /dev/nvidia0 is there: is the driver new enough? nvidia-smi shows which CUDA it supports.",
    )
    assert found.notes()[-1] == "CUDA initialization: The NVIDIA driver on your system is too old"
    with pytest.raises(ValueError, match=r"Here there is: cpu\. Note: CUDA initialization"):
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
    monkeypatch.setattr(shutil, "which", {"nvidia-smi": "/usr/bin/nvidia-smi"}.get)
    seen, advice = "A GPU seems present (/usr/bin/nvidia-smi)", "install a CUDA build to use it."
    assert describe_device().notes()[0] == f"{seen} but this PyTorch is a CPU build: {advice}"


def test_deprecations_are_not_the_users_business(no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("old spelling", DeprecationWarning, stacklevel=1)
        warnings.warn("GPU 0 is\n  too old", UserWarning, stacklevel=1)
        warnings.warn("GPU 0 is\n  too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    assert describe_device().facts.warnings == ("GPU 0 is too old",)


def test_cpuinfo_of_an_arm_server() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd asimdhp sve bf16 i8mm\nCPU implementer\t: 0x41\n"
    model, flags = parse_cpuinfo(text)
    assert model is None
    assert cpu_features({}, flags) == ("bf16", "i8mm", "sve", "asimdhp")
    assert parse_cpuinfo("") == (None, frozenset())
    assert cpu_features({}, frozenset()) is None


def test_an_autocast_dtype_that_pytorch_only_warns_about_is_not_taken() -> None:
    assert not autocast_takes("cpu", "float32")


def test_bf16_that_pytorch_refuses_on_an_old_gpu_is_not_taken(
    fake_cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cuda(("Tesla M40", (5, 2)))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    assert describe_device().facts.amp.autocast_dtypes == ("float16",)
