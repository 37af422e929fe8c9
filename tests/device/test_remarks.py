"""Notes beside the table of formats, and what cannot be run on a machine."""

from dataclasses import replace

import pytest

from amp_lab.device.facts import GpuFacts
from tests.device.machines import CU130, facts, nvidia, report


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


def test_an_h200_skips_only_what_needs_a_second_gpu() -> None:
    assert report(facts(nvidia())).not_run_here() == (
        "Several GPUs at work over NCCL: there is one GPU here.",
    )
    assert report(facts(nvidia(count=2))).not_run_here() == ()


def test_a_t4_names_the_formats_its_tensor_cores_do_not_take() -> None:
    first, *_ = report(facts(nvidia("Tesla T4", (7, 5)))).not_run_here()
    why = "Tesla T4's Tensor Cores (compute capability 7.5) are for other formats."
    assert first == f"The speed of Tensor Cores (units for matrix products) in TF32, BF16, FP8: {why}"


def test_gpus_without_tensor_cores_say_so() -> None:
    pascal, *_ = report(facts(nvidia("NVIDIA GeForce GTX 1080", (6, 1)))).not_run_here()
    assert pascal.startswith(
        "The speed of Tensor Cores (units for matrix products) in TF32, FP16, BF16, FP8: "
    )
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
        "The speed of Tensor Cores (units for matrix products) in TF32, FP16, BF16, FP8",
        "How much GPU memory is used",
        "Where a program waits for the GPU",
        "Several GPUs at work over NCCL",
    ]
    assert all(text.endswith(".") for text in skipped)


def test_an_unknown_build_is_not_called_one_without() -> None:
    unknown = replace(facts().torch, cuda=None, nccl=None)
    assert report(facts(nvidia(count=2), torch=unknown)).not_run_here() == ()
    seen = report(facts(torch=unknown, nvidia_seen="/dev/nvidia0"))
    assert "CPU build" not in str(seen)


def test_cuda_without_nccl() -> None:
    without = replace(facts().torch, nccl=False)
    assert report(facts(nvidia(count=2), torch=without)).not_run_here() == (
        "Several GPUs at work over NCCL: this PyTorch was built without it.",
    )
