"""Measuring on a CUDA device: memory against PyTorch's allocator, time by events, the ladder."""

import statistics
import time

import pytest
import torch
from torch import nn

from amp_lab.train.measure import compare, count_flops, ladder, memory_account
from benchmarks import memory

DEVICE = "cuda"

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: memory, time and the ladder are not measured on a GPU",
    ),
]


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16], ids=["FP32", "FP16", "BF16"])
@pytest.mark.parametrize(
    "case", [memory.transformer(1024, 4), memory.convolutions(64, 80)], ids=["transformer", "convolutions"]
)
def test_the_account_is_what_cudas_allocator_counts(case, dtype):
    ours, theirs = memory.accounted(case, DEVICE, dtype), memory.counted(case, DEVICE, dtype)
    assert max(theirs) > memory.LEAST
    for moment, one, other in zip(memory.MOMENTS, ours, theirs, strict=True):
        assert max(one, other) <= memory.BAR * min(one, other), (moment, one, other)


def test_the_peak_is_no_more_than_the_allocators():
    case = memory.transformer(512, 2)
    account = memory_account(*_given(case), optimizer=None, dtype=torch.float16)
    model, loss_fn, batch = _given(case)
    with torch.autocast(DEVICE, torch.float16):  # once before: the workspaces of cuBLAS
        loss_fn(model(batch[0]), batch[1]).backward()
    model.zero_grad(set_to_none=True)
    there = torch.cuda.memory_allocated() - account.weights - account.inputs
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast(DEVICE, torch.float16):
        loss = loss_fn(model(batch[0]), batch[1])
    loss.backward()
    peak = torch.cuda.max_memory_allocated() - there
    assert account.after_forward <= peak
    assert account.peak <= 1.02 * peak


def _given(case):
    torch.manual_seed(0)
    return case.model(DEVICE), case.loss, case.batch(DEVICE)


def test_fused_adam_has_the_same_state_before_and_after_its_first_step():
    model, loss_fn, batch = _given(memory.transformer(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    before = memory_account(model, loss_fn, batch, optimizer=optimizer)
    loss_fn(model(batch[0]), batch[1]).backward()
    optimizer.step()
    assert (
        memory_account(model, loss_fn, batch, optimizer=optimizer).optimizer_state == before.optimizer_state
    )


def test_events_and_the_clock_agree_on_work_that_takes_long():
    """Products that take some milliseconds: what the host adds is small."""
    matrix = torch.randn(4096, 4096, device=DEVICE)

    def work():
        for _ in range(4):
            matrix @ matrix

    by_events = compare({"work": work}, baseline="work", rounds=10, warm_up=3, device=DEVICE).median("work")
    by_clock = compare({"work": work}, baseline="work", rounds=10, warm_up=3).median("work")
    assert 0.5 < by_events / by_clock < 2
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    assert statistics.median(seconds) < by_events, "the host is back before the GPU is ready"


def test_operations_are_counted_as_on_a_cpu():
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    batch = torch.randn(16, 64), torch.randn(16, 8)
    expected = count_flops(net, nn.functional.mse_loss, batch, dtype=torch.float16, device_type="cuda").flops
    there = tuple(each.to(DEVICE) for each in batch)
    assert count_flops(net.to(DEVICE), nn.functional.mse_loss, there, dtype=torch.float16).flops == expected


def test_the_ladder_is_climbed():
    before = torch.backends.cuda.matmul.fp32_precision
    climbed = ladder(DEVICE, width=256, depth=2, batch_size=4, tokens=64, rounds=5, compile=False)
    print(climbed)
    measured = {each.name for each in climbed.rungs if each.speedup is not None}
    assert {"FP32", "FP16 autocast"} <= measured
    assert torch.backends.cuda.matmul.fp32_precision == before
    assert torch.cuda.get_device_name() == climbed.device
