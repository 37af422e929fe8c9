"""How often a step waits for the device. On a CPU each wait is a `_local_scalar_dense`, so they can be counted."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.scaling import DynamicLossScaler
from tests.scaling.loops import BOTH, backward, every, named
from tests.scaling.optimizers import FusedSGD


class Waits(TorchDispatchMode):
    """Counts the numbers that leave their tensors."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = 0
        monkeypatch.setattr(torch.Tensor, "tolist", self._tolist)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))

    def _tolist(self, *args):
        raise AssertionError("a step must not read lists of numbers")


@pytest.fixture
def waits(monkeypatch):
    return Waits(monkeypatch)


class Fused(FusedSGD):
    """Waits for nothing."""

    def step(self, closure=None):
        assert self.found_inf.dtype == torch.float32


def iteration(scaler, optimizer, number, clip):
    backward(scaler, optimizer, number, 1.0)
    if clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(every(optimizer), 1.0)
    scaler.step(optimizer)
    scaler.update()


def test_the_counter_counts(waits):
    with waits:
        torch.ones(()).item()
        bool(torch.ones(()))
        float(torch.ones(1))
    assert waits.count == 3
    with pytest.raises(AssertionError, match="lists"):
        torch.ones(2).tolist()


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("number", [1.0, float("inf")])
def test_one_wait_per_step(waits, make, clip, number):
    scaler, optimizer = make(), torch.optim.SGD(named((3,), (2,)), lr=0.1)
    for _ in range(3):
        before = waits.count
        with waits:
            iteration(scaler, optimizer, number, clip)
            assert scaler.last.skipped == (number != 1.0)
            assert scaler.last.scale > 0
            assert scaler.get_scale() > 0
            assert len(scaler.history) > 0
        assert waits.count == before + 1


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("number", [1.0, float("inf")])
def test_none_with_a_fused_optimizer(waits, make, clip, number):
    scaler, optimizer = make(), Fused(named((3,), (2,)), lr=0.1)
    with waits:
        for _ in range(5):
            iteration(scaler, optimizer, number, clip)
        assert scaler.last is not None
    assert waits.count == 0


def test_one_with_a_fused_optimizer_and_min_scale(waits):
    scaler, optimizer = DynamicLossScaler(min_scale=1.0), Fused(named((3,), (2,)), lr=0.1)
    with waits:
        iteration(scaler, optimizer, float("inf"), clip=False)
    assert waits.count == 1


def test_pytorch_waits_once_too(waits):
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(named((3,), (2,)), lr=0.1)
    with waits:
        iteration(scaler, optimizer, 1.0, clip=False)
    assert waits.count == 1
