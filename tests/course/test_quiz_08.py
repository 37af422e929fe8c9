"""What the quiz of lesson 08 says of memory and time, tried."""

import statistics
import time

import pytest
import torch
from torch import nn

from amp_lab.course.lessons.l08.quiz import QUIZ
from amp_lab.train.measure import AGAIN, GPUS, Timings, attainable, memory_account


def right(question):
    return next(option.text for option in question.options if option.right)


def account(dtype, batch=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    data = torch.randn(batch, 256), torch.randn(batch, 256)
    adam = torch.optim.Adam(model.parameters())
    return memory_account(
        model, nn.functional.mse_loss, data, optimizer=adam, dtype=dtype, device_type="cuda"
    )


def test_with_adam_amp_holds_four_fp32_numbers_per_parameter_between_two_steps():
    model = nn.Linear(64, 64)
    adam, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(2, 64)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()
    held = [*model.parameters(), *(each.grad for each in model.parameters())]
    held += [each for state in adam.state.values() for each in state.values() if each.ndim]
    assert {each.dtype for each in held} == {torch.float32}
    assert sum(each.nbytes for each in held) == 4 * sum(each.nbytes for each in model.parameters())
    assert right(QUIZ[0]).startswith("4 GiB")


def test_copies_of_weights_outweigh_the_activations_of_four_samples():
    fp32, fp16 = account(None), account(torch.float16)
    assert fp16.total > fp32.total
    assert fp16.cached_casts == 2 * 256 * 256  # nothing before the first layer asks for a gradient
    assert 10 * fp32.activations < fp16.cached_casts
    assert right(QUIZ[1]).startswith("From FP16 copies of weights")


def test_relu_gains_2_at_most_on_an_a100_with_a_peak_ratio_of_16():
    gpu = GPUS["A100"]
    assert gpu.fp16 / gpu.fp32 == pytest.approx(16, rel=0.01)
    # One comparison for each number, which is read and written.
    seconds = {what: 1 / attainable(1 / (2 * size), gpu, what) for what, size in (("fp32", 4), ("fp16", 2))}
    assert seconds["fp32"] / seconds["fp16"] == pytest.approx(2)
    with torch.autocast("cpu", torch.bfloat16):  # it follows its input
        assert torch.ones(2).relu().dtype == torch.float32
        assert torch.ones(2, dtype=torch.bfloat16).relu().dtype == torch.bfloat16
    assert right(QUIZ[2]).startswith("2 times")


def test_a_cuda_operator_goes_into_a_queue():
    assert right(QUIZ[3]) == "To put its operators into a queue."
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: CPU operators are done when they return")
    a = torch.randn(8192, 8192, device="cuda")
    a @ a
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        a @ a
    queued = time.perf_counter() - start
    torch.cuda.synchronize()
    assert time.perf_counter() - start > 3 * queued


def test_tf32_is_off_for_products_and_on_for_convolutions_by_default():
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    gpu = GPUS["A100"]
    assert gpu.fp16 / gpu.fp32 > 4 * gpu.fp16 / gpu.tf32
    assert right(QUIZ[4]).startswith("Products")


def test_a_ratio_inside_the_noise_tells_nothing():
    timings = Timings("FP32", {"FP32": (1.0,) * 3, "AMP": (0.97,) * 3, "FP32" + AGAIN: (1.04,) * 3})
    assert statistics.median(timings.seconds["AMP"]) == timings.median("AMP")
    assert timings.ratio("AMP") == pytest.approx(0.97)
    assert timings.noise == pytest.approx(0.04)
    assert abs(timings.ratio("AMP") - 1) < timings.noise
    assert right(QUIZ[5]).startswith("Nothing yet")


def test_options_of_a_question_are_alike_in_length():
    for question in QUIZ:
        lengths = [len(option.text) for option in question.options]
        assert max(lengths) <= 1.6 * min(lengths) + 8, question.text
