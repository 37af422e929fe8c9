"""What the quiz of lesson 06 says of autocast, asked from PyTorch."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast import emulate
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.policy import policy
from amp_lab.course.lessons.l06.quiz import QUIZ


@pytest.fixture(autouse=True)
def as_on_cuda():
    with emulate.tensor_cores(), emulate.cuda_autocast():
        yield


def region(dtype=torch.float16, **settings):
    return torch.autocast("cpu", dtype, **settings)


def right(question):
    return next(option for option in question.options if option.right)


def test_only_the_mean_of_an_fp16_output_is_fp16():
    with region():
        h = nn.Linear(8, 8)(torch.randn(4, 8))
        dtypes = {"sum": h.sum().dtype, "mean": h.mean().dtype, "softmax": h.softmax(-1).mean().dtype}
    assert h.dtype == torch.float16
    assert dtypes == {"sum": torch.float32, "mean": torch.float16, "softmax": torch.float32}
    assert right(QUIZ[0]).text == "`h.mean()`"


def test_a_head_outside_the_region_fails_and_inside_it_keeps_fp32_weights():
    backbone, head, x = nn.Linear(8, 8), nn.Linear(8, 2), torch.randn(4, 8)
    with region():
        features = backbone(x)
    with pytest.raises(RuntimeError, match="mat1 and mat2 must have the same dtype"):
        head(features)
    with region():
        head(features).float().sum().backward()
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in head.parameters()} == {torch.float32}
    # The other repairs: gradients that a scaler refuses, weights that stay what they are, an output that stays FP16.
    halved = copy.deepcopy(head).half()
    halved(features.detach()).sum().backward()
    optimizer, scaler = torch.optim.SGD(halved.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)
    with region():
        assert backbone.float()(x).dtype == torch.float16
    assert right(QUIZ[1]).text.startswith("Moving the call of `head` into the region")


def test_new_default_dtypes_do_not_reach_weights_that_exist():
    head = nn.Linear(8, 2)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        assert head.weight.dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


def norm(x):
    return (x * x).sum(-1).sqrt()


def test_a_disabled_region_overflows_and_an_island_does_not():
    x = torch.full((4, 8), 300.0, dtype=torch.float16)
    with region(), region(enabled=False):
        assert norm(x).isinf().all()
        assert norm(x.float()).isfinite().all()


def gradients(model, x, *, inside):
    model.zero_grad()
    with region():
        loss = model(x).float().square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


class WithIsland(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.island = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        h = self.layer(x)
        with region(enabled=False):
            return self.island(h.float())


@pytest.mark.parametrize("island", [False, True])
def test_backward_inside_the_region_changes_the_gradients_of_islands_only(island):
    torch.manual_seed(0)
    model = WithIsland() if island else nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    x = torch.randn(64, 16)
    same = map(torch.equal, gradients(model, x, inside=False), gradients(model, x, inside=True))
    assert all(same) != island


class Casts(TorchDispatchMode):
    """Counts the casts of matrices of one shape."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("frozen", "times"), [(False, 1), (True, 8)])
def test_a_frozen_weight_is_cast_at_every_call(frozen, times):
    layer = nn.Linear(16, 16, bias=False).requires_grad_(not frozen)
    with Casts((16, 16)) as casts, region():
        for _ in range(8):
            layer(torch.randn(4, 16))
    assert casts.count == times
    assert not frozen or right(QUIZ[4]).text.startswith(f"{times} times")


def test_bf16_changes_no_fate():
    x = torch.rand(4, 4)
    for dtype in (torch.float16, torch.bfloat16):
        h = x.to(dtype)
        with region(dtype):
            assert (x @ x).dtype == h.mean().dtype == dtype
            assert h.exp().dtype == h.log().dtype == h.sum().dtype == (h**2).dtype == torch.float32
            with pytest.raises(RuntimeError, match="unsafe to autocast"):
                F.binary_cross_entropy(h, h)
    assert policy("cuda").fate("binary_cross_entropy") is Fate.REFUSED
    assert torch.tensor(256.0, dtype=torch.bfloat16) + 1 == 256
