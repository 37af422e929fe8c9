"""What the quiz of lesson 04 says of numbers, computed by PyTorch."""

import math

import pytest
import torch

from amp_lab.course.lessons.l04.quiz import QUIZ


def half(number):
    return torch.tensor(number, dtype=torch.float64).half().item()


def right(question):
    return next(option for option in question.options if option.right)


def gradient(*, loss_scale=1.0, slope=2.0**-30, scale_after=1.0):
    """The gradient of a weight whose product is FP16, unscaled: `slope` of the loss times 1 + 2^-10."""
    weight = torch.tensor(1.0, requires_grad=True)
    loss = (weight.half() * torch.tensor(1 + 2.0**-10).half()).float() * slope
    (loss * loss_scale).backward()
    return weight.grad.item() * scale_after / (loss_scale * scale_after)


@pytest.mark.parametrize("slope", [2.0**-30, 1.3 * 2.0**-24], ids=["to zero", "to a subnormal"])
def test_scaling_what_has_arrived_gains_nothing(slope):
    true = slope * (1 + 2.0**-10)
    plain, after = gradient(slope=slope), gradient(slope=slope, scale_after=1024.0)
    assert after == plain
    assert abs(plain / true - 1) > 0.1
    assert abs(gradient(slope=slope, loss_scale=2.0**16) / true - 1) < 2.0**-10
    assert "Nothing is gained" in right(QUIZ[0]).text


def test_no_scale_brings_all_gradients_through():
    lowest, highest = -45, -3
    for k in range(-30, 61):
        lost = half(2.0 ** (lowest + k)) == 0
        infinite = math.isinf(half(2.0 ** (highest + k)))
        assert lost or infinite
    assert half(2.0 ** (lowest + 21)) == 2.0**-24
    assert math.isinf(half(2.0 ** (highest + 21)))
    assert half(2.0 ** (highest + 18)) == 2.0**15
    assert math.isinf(half(2.0 ** (highest + 19)))
    assert half(2.0 ** (lowest + 18)) == half(2.0 ** (lowest + 10)) == 0
    assert highest - lowest + 1 == 43
    assert len([k for k in range(-60, 60) if half(2.0**k) not in (0.0, math.inf)]) == 40
    assert "None" in right(QUIZ[1]).text
    assert any("2^10: a compromise, with half the exponent of 2^21" in each.text for each in QUIZ[1].options)
    assert 21 // 2 == 10


def test_a_layer_loses_some_of_its_gradients_or_all():
    def weights_gradients(sizes):
        """Walk back through two FP16 layers; `sizes` are the gradients that come out of the upper one."""
        lower, upper = (torch.eye(4, dtype=torch.float16, requires_grad=True) for _ in range(2))
        (torch.ones(1, 4, dtype=torch.float16) @ lower @ upper).backward(torch.tensor([sizes]).half())
        return lower.grad, upper.grad

    some, none = [2.0**-3, 2.0**-26, 2.0**-4, 2.0**-2], [2.0**-26] * 4
    assert all(grad.any() for grad in weights_gradients(some))
    assert not any(grad.any() for grad in weights_gradients(none))


def test_a_norm_that_doubles_with_the_scale_has_the_scale_in_it():
    assert 5600 / 1024 == 11200 / 2048
    assert 5.4 < 5600 / 1024 < 5.5
    logged = []
    for scale in (1024.0, 2048.0):
        weight = torch.tensor([3.3, -4.3], requires_grad=True)
        ((weight**2).sum() / 2 * scale).backward()
        logged.append(weight.grad.norm().item())
    assert logged[1] == pytest.approx(2 * logged[0])
    assert "still scaled" in right(QUIZ[2]).text


def test_a_loss_beyond_fp16_does_no_harm():
    assert round(3.2 * 65536) == 209715
    examples = 256
    logits = torch.randn(examples, 10, generator=torch.Generator().manual_seed(0)).half().requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.arange(examples) % 10)
    scaled = loss / loss.detach() * 3.2 * 65536
    assert scaled.dtype == torch.float32
    assert scaled.isfinite()
    assert scaled.half().isinf()
    (loss * 65536).backward()
    assert logits.grad.dtype == torch.float16
    assert logits.grad.abs().max() <= 65536 / examples
    assert "Nothing yet" in right(QUIZ[3]).text


@pytest.mark.parametrize(("dtype", "overflows"), [(torch.float32, False), (torch.float16, True)])
def test_the_sum_of_micro_batches_is_kept_in_the_dtype_of_the_weight(dtype, overflows):
    scale, largest = 65536.0, torch.tensor(0.9)
    assert 58_900 < scale * 0.9 < 59_000
    weight = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    for number in range(8):
        (((weight.half() * 1).float() * largest) * scale).backward()
        assert number or weight.grad.isfinite()
    assert bool(weight.grad.isinf()) is overflows
    if not overflows:
        assert weight.grad.item() == 8 * half(0.9 * scale)
        assert weight.grad.item() == pytest.approx(471_859, rel=2.0**-11)
    assert "FP32" in right(QUIZ[4]).text


def test_a_hundredth_is_almost_seven_powers_of_two():
    assert 6.5 < math.log2(100) < 7
    assert 2 ** math.floor(math.log2(100)) == 64
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn(10_000, generator=draw) * 2.0 ** torch.randint(-38, -8, (10_000,), generator=draw)
    scale = 2.0 ** math.floor(math.log2(65504 / (4 * gradients.abs().max().item())))
    zeros = [((gradients * share * scale).half() == 0).sum().item() for share in (1, 1 / 100)]
    assert zeros[1] > 1.5 * zeros[0]
    assert not (gradients / 100 * scale * 64).half().isinf().any()
    assert "zero" in right(QUIZ[5]).text
