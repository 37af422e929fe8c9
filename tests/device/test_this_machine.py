"""Whether the facts asked here are true."""

import os
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from amp_lab.device import describe_device
from amp_lab.device.asking_system import FEATURES, cpu_features


def test_cpu_flags_agree_with_the_kernel() -> None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        pytest.skip("no /proc/cpuinfo on this system: nothing to compare with")
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", path.read_text(), re.MULTILINE)
    assert line, "cpuinfo without flags"
    known = set(FEATURES)
    cpu = describe_device("cpu").facts.cpu
    assert set(cpu.features) == known & set(line[1].split())
    assert set(cpu_features({}, frozenset(line[1].split()))) == set(cpu.features)


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


def test_what_it_says_of_fp8_on_the_cpu_is_so() -> None:
    found = describe_device("cpu")
    assert found.support("FP8").kind == "emulated"
    small, one = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.tensor(1.0)
    for refused in (lambda: small + small, small.sum):
        with pytest.raises(NotImplementedError, match="not implemented"):
            refused()
    sixteen = torch.full((16, 16), 16.0)
    assert torch.equal((small @ small).float(), sixteen)
    if "amx_int8" in (found.facts.cpu.features or ()) and not found.facts.cpu.onednn_float16:
        # torch._scaled_mm looks for AMX in the CPU, and then asks a oneDNN that may not use it.
        pytest.skip("oneDNN is kept from this CPU's AMX (ONEDNN_MAX_CPU_ISA): torch._scaled_mm fails here")
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
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() == "AVX512_CORE_FP16":
        pytest.skip("ONEDNN_MAX_CPU_ISA keeps oneDNN from AMX alone: PyTorch has no answer that shows it")
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
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
