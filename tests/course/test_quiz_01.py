"""What the quiz of lesson 01 says of numbers, computed by PyTorch."""

import math

import torch

from amp_lab.course.lessons.l01.quiz import QUIZ


def half(number):
    return torch.tensor(number, dtype=torch.float32).half().item()


def count(dtype, low, high):
    """How many numbers a 16-bit dtype has from `low` to just below `high`, both positive."""
    first, last = torch.tensor([low, high], dtype=dtype).view(torch.int16).tolist()
    return last - first


def right(question):
    return next(option for option in question.options if option.right)


def test_fp16_is_finer_and_bf16_reaches_further():
    assert count(torch.float16, 1, 2) == 8 * count(torch.bfloat16, 1, 2)
    assert torch.finfo(torch.bfloat16).max > torch.finfo(torch.float16).max
    assert "coarser" in right(QUIZ[0]).text


def test_two_thirds_of_the_smallest_number_become_all_of_it():
    assert 0.66 < 4e-8 / 2**-24 < 0.68
    assert half(4e-8) == 2**-24
    assert 1.45 < half(4e-8) / 4e-8 < 1.55
    assert half(2**-25) == 0


def test_4096_does_not_move():
    total = torch.full((3,), 4096.0).half() + 1
    assert total.dtype == torch.float16
    assert total.tolist() == [4096.0] * 3
    assert half(4097) == 4096
    assert half(4100) == 4100
    assert math.log2(4097 - 1) == 12


def test_too_large_is_infinity_and_nan_comes_later():
    large = torch.tensor([1e5, 1.0]).half()
    assert large.isinf().tolist() == [True, False]
    assert not large.isnan().any()
    for later in (large - large.mean(), large.float().softmax(0), large * 0):
        assert later.isnan().any()


def test_a_dimension_is_what_counts():
    h = torch.ones(8, 64).half()
    assert h.numel() == 512
    assert (h + torch.ones(())).dtype == torch.float16
    assert (h + torch.ones(1)).dtype == torch.float32
    assert right(QUIZ[5]).text.startswith("It was FP16 and is FP32")
