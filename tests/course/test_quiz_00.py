"""What the quiz of lesson 00 says of training runs, run."""

import warnings

import pytest
import torch
from torch import nn

from amp_lab.train.data import digits


@pytest.fixture(scope="module")
def last_losses():
    """Run lesson 00's small network in one dtype each, as the quiz imagines it."""
    images, labels = digits(128)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(dtype, scale=1.0, steps=1500):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(images.to(dtype)), labels)
            optimizer.zero_grad()
            (loss.float() * scale).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
        return loss.item()

    yield {
        "FP32": run(torch.float32),
        "FP16": run(torch.float16),
        "FP16, scaled": run(torch.float16, 1024.0),
        "BF16": run(torch.bfloat16, steps=700),
    }
    torch.set_num_threads(threads)


def test_scaling_alone_rescues_nothing(last_losses):
    assert last_losses["FP16"] > 1.4 * last_losses["FP32"]
    assert last_losses["FP16, scaled"] == pytest.approx(last_losses["FP16"], rel=0.02)


def test_bf16_gets_stuck_earlier(last_losses):
    """Its loss after 700 steps is what it will be left with; FP16 is far below that later."""
    assert last_losses["BF16"] > 3 * last_losses["FP16"]
    assert torch.finfo(torch.bfloat16).eps == 8 * torch.finfo(torch.float16).eps


def test_a_region_for_the_gpu_leaves_cpu_tensors_in_fp32():
    x = torch.ones(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without CUDA PyTorch warns, and lesson 00 says so
        with torch.autocast("cuda", torch.float16):
            assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.float16):
        assert (x @ x).dtype == torch.float16
