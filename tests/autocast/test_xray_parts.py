"""What an x-ray is made of: borrowed models, regions that are followed, layers of kernels."""

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast.kernels.replacing import ReplacedKernels
from amp_lab.autocast.xray import xray
from tests.autocast.traces import leaves_no_trace

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
both_modes = pytest.mark.parametrize("mode", ["fake", "value"])


class _Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def layer(log, name):
    def replace(original):
        def kernel(keys, *args, **kwargs):
            log.append(name)
            return original(keys, *args, **kwargs)

        return kernel

    return ReplacedKernels("AutogradCPU", {"linear": replace})


def test_layers_of_kernels_under_a_dispatch_mode():
    """PyTorch would call the Python function that was registered last, whichever layer's turn it is."""
    log, x, weight = [], torch.randn(2, 3), torch.randn(4, 3)
    lower = layer(log, "lower")
    upper = layer(log, "upper")
    with _Passing():
        result = torch.nn.functional.linear(x, weight)
        assert log == ["upper", "lower"]
        upper.restore()
        torch.nn.functional.linear(x, weight)
        assert log == ["upper", "lower", "lower"]
        lower.restore()
        torch.nn.functional.linear(x, weight)
    assert log == ["upper", "lower", "lower"]
    assert result.equal(x @ weight.t())


def test_the_same_code_in_two_files_has_two_sources(tmp_path):
    """Python takes code objects for equal that differ in nothing but their file."""
    layers = []
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text("def forward(x):\n    return x.relu()\n")
        namespace = {}
        exec(compile((tmp_path / name).read_text(), str(tmp_path / name), "exec"), namespace)
        layers.append(namespace["forward"])
    assert layers[0].__code__ == layers[1].__code__
    found = xray(lambda x: layers[1](layers[0](x)), torch.randn(2, 3), backward=False)
    assert [op.source.file for op in found.ops] == [str(tmp_path / "first.py"), str(tmp_path / "second.py")]


@both_modes
def test_gradients_of_what_a_function_reaches_stay(mode):
    """A function's modules are borrowed; a tensor that it holds by itself is a leaf of the user's own."""
    fc, scale = nn.Linear(8, 8), torch.ones(8, requires_grad=True)
    fc.weight.grad, scale.grad = torch.full((8, 8), 2.0), torch.full((8,), 3.0)
    kept = fc.weight.grad, scale.grad
    fired = []
    fc.weight.register_hook(fired.append)
    found = xray(lambda x: fc(x) * scale, torch.randn(4, 8), mode=mode)
    assert found.error is None
    assert any(op.phase == "backward" and op.name == "mul" for op in found.ops)
    assert fc.weight.grad is kept[0]
    assert scale.grad is kept[1]
    assert (kept[0] == 2).all()
    assert (kept[1] == 3).all()
    assert fired == []
    assert fc.bias.grad is None


@both_modes
def test_weights_are_not_copied_and_stay_as_they_are(mode):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
    seen = []
    model[0].register_forward_hook(lambda module, *_: seen.append(module.weight))
    before = {
        name: (each, each.clone(), each._version) for name, each in model.state_dict(keep_vars=True).items()
    }
    assert xray(model, torch.randn(4, 8), mode=mode).error is None
    for name, each in model.state_dict(keep_vars=True).items():
        original, numbers, version = before[name]
        assert each is original
        assert each.equal(numbers)
        assert each._version == version
    assert seen[0] is not model[0].weight
    if mode == "value":
        assert seen[0].data_ptr() == model[0].weight.data_ptr()


def test_a_large_model_takes_no_memory_without_numbers():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(3)))  # 120 GB
    found = xray(model, torch.empty(2, 100_000))
    assert (found.mode, found.error) == ("fake", None)
    assert [op.casts[-2].copied for op in found.ops if op.name == "linear" and op.phase == "forward"] == [
        2 * 100_000**2
    ] * 3


class _Cast(torch.autograd.Function):
    """Casts its inputs to FP32 wherever CUDA's autocast is on."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=FP32)
    def forward(ctx, x):
        return x @ x.t()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        return gradient[:, :8]


@both_modes
def test_a_custom_function_that_asks_for_cudas_autocast(mode):
    fc = nn.Linear(8, 8)
    found = leaves_no_trace(xray, lambda x: _Cast.apply(fc(x)), torch.randn(8, 8), mode=mode)
    assert found.error is None
    (product,) = (op for op in found.ops if op.name == "matmul" and op.phase == "forward")
    assert (product.region, product.dtype, product.casts) == (None, FP32, ())


@both_modes
def test_regions_are_as_before_afterwards(mode):
    class Fails(nn.Module):
        def forward(self, x):
            with torch.autocast("cuda", dtype=BF16), torch.autocast("cpu", enabled=False):
                raise ValueError("no")

    with torch.autocast("cpu", BF16):
        found = leaves_no_trace(xray, Fails(), torch.randn(2), mode=mode)
        assert torch.get_autocast_dtype("cpu") == BF16
        assert torch.is_autocast_enabled("cpu")
        inside = xray(nn.Linear(8, 8), torch.randn(2, 8), mode=mode)
    assert found.error == "ValueError: no"
    forward, backward = (
        next(op for op in inside.ops if op.phase == phase) for phase in ("forward", "backward")
    )
    assert (forward.region, backward.region) == (FP16, None)
    assert torch.autocast.__init__.__module__ == "torch.amp.autocast_mode"


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a machine with CUDA such a region is on")
def test_a_region_that_pytorch_has_turned_off_is_said_to_be():
    @torch.autocast("cuda")
    def forward(x):
        return x @ x

    found = xray(forward, torch.randn(3, 3))
    assert found.ops[0].region is None
    assert any("made before" in note for note in found.notes)


def test_another_thread_is_neither_recorded_nor_changed():
    go, done, results = threading.Event(), threading.Event(), []
    fc = nn.Linear(8, 8)

    def other():
        go.wait(30)
        with torch.autocast("cpu", BF16):
            results.append(fc(torch.randn(2, 8)).dtype)
        done.set()

    class Waits(nn.Linear):
        def forward(self, x):
            go.set()
            done.wait(30)
            return super().forward(x)

    thread = threading.Thread(target=other)
    thread.start()
    found = xray(Waits(8, 8), torch.randn(4, 8), mode="value")
    thread.join()
    assert results == [BF16]
    assert [op.name for op in found.ops if op.phase == "forward" and not op.view] == ["linear"]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8)], ids=lambda each: type(each).__name__
)
def test_statistics_have_the_same_dtype_without_numbers(norm):
    """FakeTensors have those of an input in 16 bits in 16 bits, too; real tensors have them in FP32."""
    model, x = nn.Sequential(nn.Linear(8, 8), norm), torch.randn(4, 8)
    fake, value = (xray(model, x, mode=mode, device_type="cpu", dtype=BF16) for mode in ("fake", "value"))
    assert fake.error is None
    assert fake.ops == value.ops
    backward = [
        op for op in value.ops if op.phase == "backward" and op.kernels[-1].startswith("aten.native_")
    ]
    assert {each.dtype for each in backward[0].inputs} == {BF16, FP32}
