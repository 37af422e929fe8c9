"""What the quiz of lesson 03 says of numbers, computed by PyTorch."""

import torch
from torch import nn

from amp_lab.course.lessons.l03.quiz import QUIZ


def half(number):
    return torch.tensor(number, dtype=torch.float32).half()


def right(question):
    return next(option for option in question.options if option.right)


def test_a_scale_does_not_change_the_step():
    gradient, scale = torch.tensor(0.5), 1024.0
    assert gradient * scale / scale == gradient
    assert "master" in right(QUIZ[0]).text


def test_four_pieces_round_seven_times_and_a_loop_8191_times():
    assert 4 + 3 == 7
    assert 4096 + 4095 == 8191
    assert right(QUIZ[1]).text.startswith("7 times")
    steps = [half(2048.0) + half(1.0), half(2048.0) + half(1.0) + half(1.0)]
    assert [each.item() for each in steps] == [2048, 2048]  # a sum of FP16 tensors rounds, each time
    assert {each.dtype for each in steps} == {torch.float16}
    assert half([2048.0, 1.0, 1.0]) @ torch.ones(3).half() == 2050


def test_a_bf16_model_forgets_small_steps_and_computes_with_the_same_weights():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(64, 4), torch.ones(2, 64)
    with torch.autocast("cpu", torch.bfloat16):
        before = layer(inputs)
        wide = layer.weight.detach().clone()
        narrow = layer.bfloat16()
        assert torch.equal(narrow(inputs), before)
    step = wide * 0.9 * 2**-9
    assert torch.equal(narrow.weight + step.bfloat16(), narrow.weight)
    assert not torch.equal(wide + step, wide)
    assert 0.0019 < 2**-9 < 0.002
    assert torch.tensor(2.0**-126).bfloat16() == torch.finfo(torch.float32).tiny
    assert right(QUIZ[2]).text.startswith("Small steps")


def test_the_product_is_zero_before_the_master_sees_it():
    master, gradient = torch.tensor([1e-3]), half([1e-5])
    assert gradient > 0
    assert (1e-3 * gradient).dtype == torch.float16
    assert 1e-3 * gradient == 0
    assert (1e-3 * gradient.float()) > 0
    before = master.clone()
    master -= 1e-3 * gradient
    assert torch.equal(master, before)
    master -= 1e-3 * gradient.float()
    assert not torch.equal(master, before)


def test_a_scale_of_65536_saves_the_gradients_and_does_not_overflow():
    assert 65536 == 2**16
    largest = 2e-7
    assert half(largest) > 0
    assert half(largest * 65536).isfinite()
    assert half(2e-8) == 0
    assert (half(2e-8 * 65536).float() / 65536 - 2e-8).abs() < 1e-11
    assert (half(2e-8).float() * 65536) == 0
    assert "65,536" in right(QUIZ[4]).text


def test_between_the_half_and_the_whole_of_the_smallest_number_everything_is_rounded_up():
    between = torch.linspace(2**-25, 2**-24, 101)[1:-1]
    assert (between.half() == 2**-24).all()
    assert (2**-24 / between).max() < 2
    assert half(2.0**-25) == 0
    assert right(QUIZ[5]).text.startswith("2^−24")
