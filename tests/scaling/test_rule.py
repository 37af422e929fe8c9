"""The rule in plain numbers, against PyTorch's kernel; and simulate, against real runs."""

import math
import random

import numpy as np
import pytest
import torch

from amp_lab.scaling import DynamicLossScaler, LossScaleTooSmall, ScaleRule, ScaleState, next_scale, simulate
from amp_lab.scaling.rule import to_fp32
from tests.scaling.loops import every


def kernel(state, overflowed, rule):
    """Do one update with PyTorch's kernel."""
    scale = torch.tensor(state.scale, dtype=torch.float32)
    clean_steps = torch.tensor(state.clean_steps, dtype=torch.int32)
    found = torch.tensor(float(overflowed))
    torch._amp_update_scale_(
        scale, clean_steps, found, rule.growth_factor, rule.backoff_factor, rule.growth_interval
    )
    return ScaleState(scale.item(), clean_steps.item())


def test_the_rule_is_pytorchs():
    draw = random.Random(0)
    grown = held = 0
    for _ in range(20_000):
        rule = ScaleRule(
            draw.choice([1.0, 1.001, 2.0, draw.uniform(1, 3), 1e30]),
            draw.choice([1.0, 0.5, draw.uniform(0.001, 1), 1e-30]),
            draw.randint(1, 4),
        )
        start = to_fp32(draw.choice([2.0 ** draw.uniform(-149, 128), 2.0 ** draw.randint(-149, 127), 0.0]))
        state = ScaleState(start if math.isfinite(start) else 3.4028234663852886e38, draw.randint(0, 5))
        overflowed = draw.random() < 0.3
        after = next_scale(state, overflowed, rule)
        assert after == kernel(state, overflowed, rule), (state, overflowed, rule)
        assert isinstance(after.scale, float)
        grown += after.scale > state.scale
        held += (
            state.clean_steps + 1 == rule.growth_interval
            and rule.growth_factor > 1
            and after.scale == state.scale
        )
    assert grown > 1_000
    assert held > 100, "growth beyond FP32 was hardly tried"


def test_nothing_is_changed_in_place():
    state, rule = ScaleState(8.0, 1), ScaleRule(growth_interval=2)
    assert next_scale(state, False, rule) == (16.0, 0)
    assert next_scale(state, True, rule) == (4.0, 0)
    assert state == (8.0, 1)


@pytest.mark.parametrize(
    ("clean_steps", "interval", "after"),
    [(0, 2, (8.0, 1)), (1, 2, (16.0, 0)), (2, 2, (8.0, 3)), (9, 2, (8.0, 10))],
)
def test_the_count_is_compared_with_equals(clean_steps, interval, after):
    assert next_scale(ScaleState(8.0, clean_steps), False, ScaleRule(growth_interval=interval)) == after


def test_the_floor():
    rule = ScaleRule(min_scale=3.0)
    assert next_scale(ScaleState(8.0), True, rule) == (4.0, 0)
    assert next_scale(ScaleState(4.0), True, rule) == (3.0, 0)
    assert next_scale(ScaleState(3.0), True, rule) == (3.0, 0)
    assert ScaleRule(min_scale=0.1).min_scale == to_fp32(0.1) != 0.1


@pytest.mark.parametrize("number", [0.1, 1e38, 2.0**-149, 2.0**-151, 65537.3, 16777217.0])
def test_rounding_to_fp32(number):
    assert to_fp32(number) == torch.tensor(number, dtype=torch.float64).float().item()


def test_rounding_beyond_fp32():
    largest = torch.finfo(torch.float32).max
    # From the middle between the largest number and 2^128 on.
    assert to_fp32(2.0**128 - 2.0**103) == math.inf
    assert to_fp32(math.nextafter(2.0**128 - 2.0**103, 0)) == largest
    assert to_fp32(-1e300) == -math.inf


SETTINGS = {"init_scale": 2.0**20, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}


def peaks(count, seed=0):
    draw = random.Random(seed)
    return [to_fp32(10 ** draw.uniform(-3, 1)) for _ in range(count)]


def run(scaler, peaks):
    """Train with gradients that go through FP16 and have these peaks."""
    weight = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for peak in peaks:
        optimizer.zero_grad()
        (weight,) = every(optimizer)
        # The gradient is rounded to FP16 on its way back.
        scaler.scale((weight.half().float() * peak).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_simulation_is_what_a_run_does():
    scaler, some = DynamicLossScaler(**SETTINGS), peaks(300)
    run(scaler, some)
    history = simulate(some, **SETTINGS)
    assert history == scaler.history
    assert 20 < sum(history.skipped) < 200
    assert len(set(history.scales)) > 5


def test_a_simulation_stops_where_a_run_stops():
    some = [*peaks(50), math.inf, *[1e5] * 60]
    scaler = DynamicLossScaler(**SETTINGS, min_scale=0.75)
    with pytest.raises(LossScaleTooSmall):
        run(scaler, some)
    history = simulate(some, **SETTINGS, min_scale=0.75)
    assert history == scaler.history
    assert history.stopped
    assert 51 < len(history) < len(some)
    assert history.scales[-1] == 1.0 or history.scales[-1] == 0.75
    assert "then stopped at min_scale" in repr(history)


@pytest.mark.parametrize(
    ("peak", "overflows"),
    [(65519.99, False), (65520.0, True), (0.0, False), (math.inf, True), (math.nan, True)],
)
def test_where_fp16_ends(peak, overflows):
    assert simulate([peak], init_scale=1.0).skipped == [overflows]
    assert torch.tensor(peak).half().isfinite().item() is not overflows


def test_peaks_of_other_kinds():
    as_tensor = torch.tensor([1.0, 2.0])
    assert simulate(as_tensor, init_scale=2.0**15).skipped == [False, True]
    assert simulate((p for p in [1, 2]), init_scale=2.0**15).skipped == [False, True]
    assert simulate([], init_scale=1.0).scales == []
    with pytest.raises(ValueError, match=r"peaks\[1\] is -1.0"):
        simulate([1.0, -1.0])
    with pytest.raises(ValueError, match="init_scale=0"):
        simulate([1.0], init_scale=0.0)


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ("12", "peaks='12': must be a list or a 1-D tensor"),
        (b"12", "peaks=b'12': must be a list or a 1-D tensor"),
        ({0: 1.0}, "must be a list or a 1-D tensor"),
        (torch.ones(2, 1), "must be a list or a 1-D tensor"),
        (torch.ones(()), "must be a list or a 1-D tensor"),
        (np.ones((2, 1)), "must be a list or a 1-D tensor"),
        (["1"], r"peaks\[0\] is '1': must be one number"),
        ([1.0, None], r"peaks\[1\] is None: must be one number"),
        ([1.0, True], r"peaks\[1\] is True: must be one number"),
        ([torch.ones(1)], r"peaks\[0\] is tensor\(\[1.\]\): must be one number"),
        ([1.0, 1j], r"peaks\[1\] is 1j: must be one number"),
        (
            torch.ones(2, device="meta"),
            r"peaks\[0\] is tensor\(\.\.\., device='meta', size=\(\)\): must be one",
        ),
    ],
)
def test_peaks_that_are_none(peaks, words):
    with pytest.raises(TypeError, match=words):
        simulate(peaks)
