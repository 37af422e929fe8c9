"""What the page of lesson 02 says of PyTorch and of the formats, for all numbers and not only for its examples."""

import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.formats import BF16, FP16

EVERY_HALF = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16)  # finite, not negative, in order
HALVES = (torch.float16, torch.bfloat16)


def half(*numbers):
    return torch.tensor(numbers).half()


def test_where_squares_leave_the_range():
    square = EVERY_HALF * EVERY_HALF
    assert EVERY_HALF[square.isinf()].min() == 256
    largest_lost = EVERY_HALF[square == 0].max().item()
    assert round(largest_lost, 5) == 0.00017
    assert largest_lost == pytest.approx(2**-12.5, rel=1e-3)  # the root of 2^-25


def test_triangles_have_normal_sides():
    for side in (3.0, 4.0, 5.0, 300.0, 400.0, 500.0, 0.00009, 0.00012, 0.00015):
        assert torch.finfo(torch.float16).smallest_normal <= side <= 65504


def test_exponentials_are_in_range_from_minus_17_to_11():
    fine = [n for n in range(-40, 40) if 0 < half(float(n)).exp().item() < math.inf]
    assert fine == list(range(-17, 12))


def test_softmax_subtracts_the_largest():
    for x in (half(20.0, 0.0), half(65504.0, -65504.0), half(-65504.0, -65504.0)):
        assert x.softmax(0).sum() == 1
    assert half(-math.inf, -math.inf).softmax(0).isnan().all()


def test_no_smaller_eps_keeps_a_quotient_in_range():
    smallest = EVERY_HALF[(1 / EVERY_HALF).isfinite()].min().item()
    assert smallest == 2**-16 + 2**-24  # the next one after 2^-16, whose inverse is 65536
    assert 0.000015 < 1 / 65504 < smallest < 0.000016
    assert (1 / half(0.000015)).isinf()
    assert (1 / half(0.000016)).isfinite()


@pytest.mark.parametrize(("dtype", "lost"), [(torch.float16, 2.0**-12), (torch.bfloat16, 2.0**-9)])
def test_which_steps_move_a_weight(dtype, lost):
    """For every normal weight, in FP32, which holds weight and step exactly enough."""
    weights = torch.arange(0x7F80, dtype=torch.int16).view(dtype)
    info = torch.finfo(dtype)
    weights = weights[(weights >= 4 * info.smallest_normal) & (weights < info.max / 4)].double()
    rounded = (FP16 if dtype is torch.float16 else BF16).round
    for sign in (1, -1):
        assert torch.equal(rounded(weights * (1 + sign * lost * 0.9999)), weights)
        assert not (rounded(weights * (1 + sign * 2 * lost * 1.001)) == weights).any()
        some = (rounded(weights * (1 + sign * 1.4 * lost)) != weights).double().mean()
        assert 0.3 < some < 0.7, "between the two it depends"


@pytest.mark.parametrize(
    ("weight", "rate", "fp16_moves", "bf16_moves"),
    [
        (1.0, 0.001, True, False),
        (1.0, 0.0001, False, False),
        (0.06, 0.001, True, True),
        (0.06, 0.0001, True, False),
        (0.06, 0.00001, False, False),
    ],
)
def test_it_depends_on_the_weight_which_learning_rates_are_lost(weight, rate, fp16_moves, bf16_moves):
    for each, moves in ((FP16, fp16_moves), (BF16, bf16_moves)):
        stored = each.round(weight).item()
        assert (each.round(stored - rate) != stored) == moves


def test_adam_in_fp16_takes_steps_of_two_gaps():
    weight = nn.Parameter(torch.ones(1).half())
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    optimizer.step()
    for _ in range(50):
        before = weight.item()
        optimizer.step()
        assert before - weight.item() == 2 * FP16.ulp(before).item() == pytest.approx(0.00098, abs=5e-6)


def test_a_variance_by_the_better_formula_needs_no_more_digits():
    for x in (half(101.0, 102.0, 102.0), torch.tensor([9999.0, 10_000.0, 10_001.0])):
        wanted = x.double().var(correction=0).item()
        assert ((x - x.mean()) ** 2).mean().item() == pytest.approx(wanted, rel=0.01)
        assert abs(((x * x).mean() - x.mean() ** 2).item() - wanted) > 0.5


def test_exponentials_are_zero_in_fp32_from_104_on():
    assert next(n for n in range(80, 120) if torch.tensor(-float(n)).exp() == 0) == 104


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_inside_pytorch_do_not_stall(dtype):
    stop = {torch.float16: 2048, torch.bfloat16: 256}[dtype]
    ones = torch.ones(8 * stop, dtype=dtype)
    count = torch.zeros((), dtype=dtype)
    for one in ones:
        count = count + one
    assert count == stop
    assert ones.sum() == ones.cumsum(0)[-1] == 8 * stop
    assert ones.mean() == 1


def test_a_mean_may_be_in_range_where_the_sum_is_not():
    x = torch.full((100,), 6000.0).half()
    assert x.sum().isinf()
    assert x.mean() == 6000


@pytest.mark.parametrize("dtype", HALVES)
def test_an_average_that_follows_in_fp32_gets_stuck_in_16_bits(dtype):
    average, weight = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    while (moved := average.lerp(weight, 0.001)) != average:
        average = moved
    gap = (FP16 if dtype is torch.float16 else BF16).ulp(average.item()).item()
    assert 0.001 * (1 - average.item()) <= gap / 2
    assert average < 0.8


def first_step_of_adam(eps):
    weight = nn.Parameter(torch.ones(4).half())
    weight.grad = half(0.0, 0.0001, 0.001, 1.0)
    optimizer = torch.optim.Adam([weight], lr=0.001, eps=eps)
    optimizer.step()
    return weight.detach(), optimizer.state[weight]["exp_avg_sq"]


def test_adam_in_fp16_loses_its_squares_and_its_eps():
    weight, squares = first_step_of_adam(1e-8)
    assert (squares == 0).tolist() == [True, True, True, False]
    assert weight.isfinite().tolist() == [False, False, False, True]
    assert weight[0].isnan()
    assert squares[3].item() == pytest.approx(0.001, rel=1e-3)


def test_a_larger_eps_cures_the_nan_and_no_more():
    weight, squares = first_step_of_adam(1e-4)
    assert weight.isfinite().all()
    assert (squares == 0).tolist() == [True, True, True, False]
    steps = (1 - weight).tolist()
    assert steps[3] == pytest.approx(0.001, rel=0.05)
    assert steps[2] == pytest.approx(10 * 0.001, rel=0.05)
    assert steps[1] == pytest.approx(0.001, rel=0.05), "right by accident: eps is as large as this gradient"
    assert half(0.001) ** 2 > 0, "it is the running mean that is zero, not the square"


def test_masked_fill_refuses_what_does_not_fit():
    scores = torch.zeros(2).half()
    hidden = torch.tensor([True, False])
    with pytest.raises(RuntimeError, match="overflow"):
        scores.masked_fill(hidden, -1e9)
    assert torch.where(hidden, -1e9, scores)[0].isinf()
    assert (scores + hidden.half() * -1e9)[0].isinf()
    assert (scores - 1e9).isinf().all()
    assert (torch.zeros(3) - 1e9).softmax(0).isfinite().all()


def test_normalisations_of_pytorch_are_fp32_inside():
    x = half(300.0, -500.0, 800.0, 100.0)[None]
    for function in (F.rms_norm, F.layer_norm):
        wanted = function(x.float(), (4,))
        assert torch.allclose(function(x, (4,)).float(), wanted, rtol=2e-3)


def test_clipping_of_pytorch_is_fp32_inside():
    parameter = nn.Parameter(torch.zeros(9000).half())
    parameter.grad = torch.full((9000,), 100.0).half()
    assert nn.utils.clip_grad_norm_([parameter], 1.0).item() == pytest.approx(9486.8, rel=1e-3)
    assert parameter.grad.float().norm().item() == pytest.approx(1, rel=0.01)


def test_clipping_of_pytorch_hands_its_norm_over_in_fp16():
    parameter = nn.Parameter(torch.zeros(9000).half())
    parameter.grad = torch.full((9000,), 1000.0).half()
    assert nn.utils.clip_grad_norm_([parameter], 1.0).isinf()
    assert not parameter.grad.any()
    parameter = nn.Parameter(torch.zeros(9000))
    parameter.grad = torch.full((9000,), 1000.0)
    assert nn.utils.clip_grad_norm_([parameter], 1.0).item() == pytest.approx(94868, rel=1e-3)
    assert parameter.grad.norm().item() == pytest.approx(1, rel=0.01)


def test_a_score_of_plus_infinity_makes_nan_of_its_row_and_minus_infinity_does_not():
    assert half(1.0, math.inf).softmax(0).isnan().any()
    assert half(1.0, -math.inf).softmax(0).tolist() == [1, 0]


@pytest.mark.parametrize(("dtype", "each"), [(torch.float16, FP16), (torch.bfloat16, BF16)])
def test_casts_from_fp64_on_a_cpu_round_twice(dtype, each):
    generator = torch.Generator().manual_seed(0)
    number = torch.rand(10_000, dtype=torch.float64, generator=generator) + 1
    number = number.to(dtype).double() + each.limits.eps / 2 + 2**-40  # a trifle above the middle
    twice, once = number.to(dtype).double(), each.round(number)
    assert torch.equal(twice, number.float().to(dtype).double())
    assert 0.3 < (twice != once).double().mean() < 0.7, "every other tie goes to the wrong side"
    assert ((once - twice)[twice != once] == each.ulp(twice[twice != once])).all()


def test_a_float_of_python_has_53_bits():
    assert sys.float_info.mant_dig == 53
