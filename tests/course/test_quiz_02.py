"""What the quiz of lesson 02 says of numbers, computed by PyTorch."""

import functools
import operator

import pytest
import torch
from torch.nn import functional as F

from amp_lab.course.lessons.l02.quiz import QUIZ


def half(number):
    return torch.tensor(number, dtype=torch.float32).half()


def right(question):
    return next(option.text for option in question.options if option.right)


def by_loop(terms):
    return functools.reduce(operator.add, terms).item()


def test_a_loss_scale_cures_small_gradients():
    assert "1e-8" in right(QUIZ[0])
    assert half(1e-8) == 0
    assert (half(1e-8 * 1024).float() / 1024).item() == pytest.approx(1e-8, rel=0.01)
    assert (half(1e-8 * 1024)).item() == pytest.approx(1e-5, rel=0.03)


def test_a_loss_scale_cures_nothing_else():
    row = half([300.0, -300.0])
    assert (row * (row * row).mean().rsqrt()).tolist() == [0, 0]
    step = (half(1e-4 * 1024).float() / 1024).half()
    assert half(1.0) - step == half(1.0) + step == 1
    assert half(1.0) - 2 * step == 1
    assert half(1.0) - 3 * step < 1
    assert half(1.0) + 4 * step == 1
    assert half(1.0) + 5 * step > 1


def test_fp32_comes_too_late_for_a_probability():
    probability = half(12.0).sigmoid()
    assert probability == 1
    assert torch.sigmoid(torch.tensor(12.0)).item() == pytest.approx(0.999994, abs=1e-6)
    target = torch.zeros(())
    assert right(QUIZ[1]).startswith("100: ")
    assert F.binary_cross_entropy(probability.float(), target) == 100
    for saved in (
        F.binary_cross_entropy(half(12.0).float().sigmoid(), target),
        F.binary_cross_entropy_with_logits(half(12.0).float(), target),
    ):
        assert saved.item() == pytest.approx(12, abs=0.02)
    assert F.binary_cross_entropy(probability.float(), torch.ones(())) == 0


def test_bf16_is_better_at_all_but_long_sums():
    assert right(QUIZ[2]).startswith("A running loss")
    x = torch.full((8,), 500.0)
    assert (x.half() * x.half()).mean().isinf()
    assert (x.bfloat16() * x.bfloat16()).mean().item() == pytest.approx(250_000, rel=0.01)
    for dtype, stop in ((torch.float16, 2048), (torch.bfloat16, 256)):
        assert by_loop(torch.ones(3000, dtype=dtype)) == stop
    row = torch.zeros(3, dtype=torch.bfloat16) - 1e9
    assert row[0].item() == pytest.approx(-1e9, rel=0.004)
    assert row.softmax(0).tolist() == pytest.approx([1 / 3] * 3, rel=0.01)
    eps = torch.zeros((), dtype=torch.bfloat16) + 1e-8
    assert eps > 0
    assert (1 / eps).isfinite()
    assert half(0.0) + 1e-8 == 0


@pytest.mark.parametrize(("eps", "survives"), [(1e-12, False), (1e-8, False), (1e-5, True)])
def test_an_eps_that_is_there(eps, survives):
    x = torch.full((4,), 3.0).half()
    variance = (x - x.mean()).square().mean()
    row = (x - x.mean()) / (variance + eps).sqrt()
    assert row.tolist() == [0] * 4 if survives else row.isnan().all()
    assert (f"{eps:.0e}".replace("e-0", "e-") in right(QUIZ[3])) == survives


def test_the_numbers_beside_the_eps():
    assert half(1e-5).sqrt().item() == pytest.approx(0.003, rel=0.1)
    assert 0 < half(1e-5) < torch.finfo(torch.float16).smallest_normal
    assert torch.nn.LayerNorm(2).eps == 1e-5
    assert torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).defaults["eps"] == 1e-8
    assert F.normalize(torch.zeros(1, 3).half()).isnan().all()
    assert not F.normalize(torch.zeros(1, 3)).isnan().any()


def test_the_order_of_a_sum():
    v = half([2048.0] + [1.0] * 1000)
    assert by_loop(v) == 2048
    assert by_loop(v.flip(0)) == 3048
    assert v.sum().item() == 3048
    assert "from the front" in right(QUIZ[4])


def test_a_mean_square_needs_fp32_before_the_square():
    x = torch.full((1000,), 300.0).half()
    for option in QUIZ[5].options:
        value = eval(option.text.strip("`"), {"x": x, "torch": torch})
        assert (value.item() == 90_000) == option.right
        assert value.isinf() or option.right
    assert torch.tensor(90_000.0).half().isinf()
