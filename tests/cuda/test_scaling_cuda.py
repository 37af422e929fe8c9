"""DynamicLossScaler on a CUDA device: PyTorch's bits, at most one wait per step, CUDA graphs."""

import pytest
import torch

from amp_lab.scaling import CallOrderError, DynamicLossScaler
from tests.scaling.loops import backward
from tests.scaling.twins import Twins

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: the loss scalers on CUDA tensors are not checked",
    ),
]


@pytest.mark.parametrize("seed", range(10))
def test_the_same_in_every_bit(seed):
    Twins(seed, "cuda").steps(50)


def on_gpu(kind, **settings):
    weights = [torch.ones(shape, device="cuda", requires_grad=True) for shape in ((3,), (2, 2))]
    return kind([("first", weights[0]), ("second", weights[1])], lr=0.1, **settings)


@pytest.fixture
def waits_are_errors():
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_a_fused_step_never_waits(request):
    scaler, optimizer = DynamicLossScaler(), on_gpu(torch.optim.AdamW, fused=True)
    backward(scaler, optimizer)
    scaler.step(optimizer)  # makes the optimizer's own state
    scaler.update()
    request.getfixturevalue("waits_are_errors")
    for number in (1.0, float("inf"), 1.0):
        backward(scaler, optimizer, number, 1.0)
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.set_sync_debug_mode("default")
    assert scaler.history.skipped == [False, False, True, False]


def test_an_ordinary_step_waits_only_inside_unscale(request):
    scaler, optimizer = DynamicLossScaler(), on_gpu(torch.optim.SGD)
    for number in (1.0, float("inf")):
        backward(scaler, optimizer, number, 1.0)
        scaler.unscale_(optimizer)
        torch.cuda.set_sync_debug_mode("error")
        scaler.step(optimizer)
        scaler.update()
        report = scaler.last
        torch.cuda.set_sync_debug_mode("default")
    assert [one.name for one in report.overflowed] == ["first"]


def test_two_devices():
    """Gradients on the CPU and on the GPU in one optimizer; the scale lives where the first output was."""
    for first in ("cpu", "cuda"):
        scaler = DynamicLossScaler(1024.0)
        weights = [torch.ones(2, device=device, requires_grad=True) for device in ("cpu", "cuda")]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        for bad in (1.0, float("nan")):
            optimizer.zero_grad()
            scaler.scale(torch.ones((), device=first))
            for weight, number in zip(weights, (1.0, bad), strict=True):
                scaler.scale((weight * number).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.history.skipped == [False, True]
        for weight in weights:
            torch.testing.assert_close(weight.detach().cpu(), torch.full((2,), 0.9))


def test_a_cuda_graph_that_has_recorded_scale():
    """The replayed graph multiplies by the scale of the day, and nobody calls scale() again."""
    scaler = DynamicLossScaler(8.0, growth_interval=1)
    weight = torch.ones(2, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(weight.sum()).backward()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaler.scale(weight.sum()).backward()
    for _ in range(3):
        graph.replay()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.history.scales == [8.0, 16.0, 32.0]
    torch.testing.assert_close(weight.detach(), torch.full((2,), 0.7, device="cuda"))


@pytest.mark.parametrize("settings", [{}, {"fused": True}])
def test_scaled_gradients_on_unscaled_ones(settings):
    """On CUDA the backward pass runs in a thread of its own."""
    scaler, optimizer = DynamicLossScaler(), on_gpu(torch.optim.AdamW, **settings)
    backward(scaler, optimizer)
    scaler.unscale_(optimizer)
    backward(scaler, optimizer)
    with pytest.raises(CallOrderError, match=r"backward\(\) of a scaled loss has run after unscale_"):
        scaler.step(optimizer)
    scaler.update()
    backward(scaler, optimizer)
    scaler.step(optimizer)
    assert scaler.last.stepped


def test_without_a_graph_scale_must_be_called():
    scaler, optimizer = DynamicLossScaler(), on_gpu(torch.optim.SGD)
    backward(scaler, optimizer)
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(CallOrderError):
        scaler.step(optimizer)
