"""What the page of lesson 04 says beyond what its cells show."""

import math

import pytest
import torch

from amp_lab.train.data import noisy_digits
from amp_lab.train.models import denoiser


def test_each_pixel_has_a_115000th_part_in_the_error():
    noisy, _ = noisy_digits()
    assert round(noisy.numel(), -3) == 115_000
    output = denoiser()(noisy)
    output.retain_grad()
    output.mean().backward()
    assert torch.allclose(output.grad, torch.tensor(1 / noisy.numel()))


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**0, 2.0**10, 2.0**24])
def test_powers_of_two_cost_no_rounding(scale):
    numbers = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(numbers * scale / scale, numbers)


def test_fp16_has_forty_powers_of_two():
    info = torch.finfo(torch.float16)
    assert math.log2(info.smallest_subnormal if hasattr(info, "smallest_subnormal") else 2**-24) == -24
    powers = torch.tensor([2.0**k for k in range(-60, 60)]).half()
    assert (powers.isfinite() & (powers > 0)).sum() == 40


def test_a_gradient_on_its_way_that_is_zero_makes_zeros_of_all_behind_it():
    x = torch.randn(8, 4, dtype=torch.float16, requires_grad=True)
    weight = torch.randn(4, 4, dtype=torch.float16, requires_grad=True)
    (x @ weight).backward(torch.full((8, 4), 2.0**-26).half())
    assert not weight.grad.any()
    assert not x.grad.any()


def test_adam_divides_the_size_of_gradients_out_and_sgd_does_not():
    def step(kind, factor):
        weight = torch.nn.Parameter(torch.zeros(3))
        weight.grad = factor * torch.tensor([1.0, -2.0, 0.5])
        kind([weight], lr=0.1).step()
        return weight.detach()

    assert torch.allclose(step(torch.optim.Adam, 1.0), step(torch.optim.Adam, 1 / 1024), rtol=1e-4)
    assert torch.equal(step(torch.optim.SGD, 1.0), 1024 * step(torch.optim.SGD, 1 / 1024))
