"""amp_lab.device on a real CUDA device: what the report says is what the device does."""

import re

import pytest
import torch

from amp_lab.device import describe_device

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: the report on a real GPU is not checked"
    ),
]


@pytest.fixture(scope="module")
def report():
    print(describe_device())  # shown when a test fails: which machine it was
    return describe_device()


@pytest.fixture
def fp32_settings():
    """Puts back the settings that a test changes."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [place.fp32_precision for place in places]
    yield places
    for place, value in zip(places, before, strict=True):
        place.fp32_precision = value


def runs_scaled_mm() -> bool:
    small = torch.ones(16, 16, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    try:
        product = torch._scaled_mm(small, small.t(), one, one, out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError):
        return False
    return bool((product == 16).all())


def test_the_device_is_the_one_pytorch_uses(report) -> None:
    properties = torch.cuda.get_device_properties()
    gpu = report.facts.gpu
    assert report.device == f"cuda:{torch.cuda.current_device()}"
    assert (gpu.name, gpu.memory_bytes) == (properties.name, properties.total_memory)
    assert gpu.count == torch.cuda.device_count()
    assert report.name in str(report)
    assert report.name in report._repr_html_()
    for same in ("cuda", report.device, torch.device(report.device)):
        assert describe_device(same) == describe_device()


@pytest.mark.skipif(
    torch.version.hip is not None, reason="compute capabilities are NVIDIA's: this is a ROCm build"
)
class TestNvidia:
    def test_capability_and_native_bf16(self, report) -> None:
        assert report.facts.gpu.capability == torch.cuda.get_device_capability()
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        assert report.facts.gpu.bf16_native is native
        if report.support("BF16").kind != "unknown":
            assert (report.support("BF16").kind == "tensor cores") is native

    def test_fp8_products_run_where_it_says_so(self, report) -> None:
        if report.support("FP8").kind != "unknown":
            assert (report.support("FP8").kind == "tensor cores") is runs_scaled_mm()

    def test_tf32_changes_products_where_it_says_so(self, report, fp32_settings) -> None:
        matmul, _ = fp32_settings
        torch.manual_seed(0)
        left, right = torch.randn(2, 512, 512, device="cuda")
        exact = left.double() @ right.double()
        error = {}
        for setting, state in (("ieee", "off"), ("tf32", "on")):
            matmul.fp32_precision = setting
            error[setting] = (left @ right - exact).abs().max().item()
            if report.support("TF32").kind == "tensor cores":
                assert f"Now {state} for matrix products" in describe_device().support("TF32").meaning
        assert error["ieee"] < 1e-3
        if report.support("TF32").kind != "unknown":
            assert (report.support("TF32").kind == "tensor cores") is (error["tf32"] > 1e-2)

    def test_cudnn_switch(self, report, fp32_settings) -> None:
        _, conv = fp32_settings
        for setting, state in (("ieee", "off"), ("tf32", "on")):
            conv.fp32_precision = setting
            if report.support("TF32").kind == "tensor cores":
                assert f"{state} for cuDNN convolutions" in describe_device().support("TF32").meaning

    def test_little_is_skipped_on_a_recent_gpu(self, report) -> None:
        if torch.cuda.get_device_capability() < (8, 9) or not torch.distributed.is_nccl_available():
            pytest.skip(f"{report.name} or this PyTorch lacks parts of the course")
        expected = (
            ()
            if torch.cuda.device_count() > 1
            else ("Several GPUs at work over NCCL: there is one GPU here.",)
        )
        assert report.not_run_here() == expected


def test_autocast_takes_what_it_says(report) -> None:
    assert "float16" in report.facts.amp.autocast_dtypes
    for name in report.facts.amp.autocast_dtypes:
        with torch.autocast("cuda", dtype=getattr(torch, name)):
            assert (torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).dtype is getattr(
                torch, name
            )
    with torch.autocast("cuda"):
        product = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    assert str(product.dtype) == f"torch.{report.facts.amp.default_dtype}"


def test_grad_scaler_works_as_it_says(report) -> None:
    weight = torch.ones(1, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale((weight * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert report.facts.amp.grad_scaler is (scaler.get_scale() == 2.0 and weight.item() == 1.0)


def test_describing_keeps_no_memory_and_no_state(report) -> None:
    before = torch.cuda.memory_allocated(), torch.cuda.current_device(), torch.is_autocast_enabled("cuda")
    describe_device()
    describe_device("cpu")
    assert (
        torch.cuda.memory_allocated(),
        torch.cuda.current_device(),
        torch.is_autocast_enabled("cuda"),
    ) == before


def test_an_index_past_the_last_gpu() -> None:
    name = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ValueError, match=rf"{name}.*{re.escape('Here there is: cuda:0')}"):
        describe_device(name)


def test_the_cpu_of_a_gpu_machine() -> None:
    report = describe_device("cpu")
    assert report.facts.gpu is None
    assert any(note.startswith("Also here: cuda:0") for note in report.notes())
