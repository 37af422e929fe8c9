"""What the page of lesson 06 says beyond what its cells show."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast import emulate


@pytest.fixture(autouse=True)
def as_on_cuda():
    with emulate.tensor_cores(), emulate.cuda_autocast():
        yield


def region(dtype=torch.float16, **settings):
    return torch.autocast("cpu", dtype, **settings)


def test_dot_refuses_mixed_dtypes_outside_a_region():
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.dot(torch.rand(4).half(), torch.rand(4))


def test_products_into_out_are_left_alone():
    x = torch.rand(4, 4)
    out = torch.empty(4, 4)
    with region():
        assert torch.mm(x, x, out=out).dtype == torch.float32
        with pytest.raises(RuntimeError):
            torch.mm(x, x, out=out.half())


def test_batch_norm_of_fp16_has_statistics_that_fp16_could_not_hold():
    norm, x = nn.BatchNorm1d(4), 300 * torch.randn(64, 4)
    with region():
        output = norm(x.half())
    assert output.dtype == torch.float16
    assert norm.running_var.dtype == torch.float32
    variance = 0.9 + 0.1 * x.half().float().var(0)
    assert torch.allclose(norm.running_var, variance, rtol=1e-3)
    assert output.std() > 0.9
    assert (x.half().square()).isinf().any()  # in FP16 its squares would have overflowed


class Casts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape == (16, 16)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("regions", "times"), [("nested", 1), ("one after the other", 2)])
def test_the_cache_lasts_until_the_outermost_region_ends(regions, times):
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)
    with Casts() as casts:
        if regions == "nested":
            with region():
                for _ in range(2):
                    with region():
                        layer(x)
        else:
            for _ in range(2):
                with region():
                    layer(x)
    assert casts.count == times


def test_a_region_for_another_device_disables_nothing():
    x = torch.rand(4, 4)
    with region(), torch.autocast("xpu", enabled=False):
        assert (x @ x).dtype == torch.float16
    with region(), region(enabled=False):
        assert (x @ x).dtype == torch.float32


def test_custom_fwd_that_casts_its_inputs_is_an_island():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x @ x

    with region():
        assert Square.apply(torch.rand(4, 4).half()).dtype == torch.float32


def test_a_frozen_weight_in_16_bits_is_not_cast():
    layer = nn.Linear(16, 16, bias=False).requires_grad_(False).half()
    with Casts() as casts, region():
        layer(torch.randn(4, 16))
    assert casts.count == 0


def test_a_region_without_the_cache_may_have_another_dtype():
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)
    with region():
        assert layer(x).dtype == torch.float16
        with region(torch.bfloat16, cache_enabled=False):
            assert layer(x).dtype == torch.bfloat16
