"""What the page of lesson 05 says beyond what its cells show."""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_lab.scaling import simulate

PAGE = (Path(__file__).parents[2] / "solutions/05_dynamic_loss_scaling.py").read_text(encoding="utf-8")


def test_the_defaults_of_pytorchs_scaler():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(torch.amp.GradScaler).parameters.items()
    }
    assert defaults["init_scale"] == 2.0**16
    assert (defaults["growth_factor"], defaults["backoff_factor"], defaults["growth_interval"]) == (
        2,
        0.5,
        2000,
    )


@pytest.mark.parametrize("interval", [20, 2000])
def test_asking_costs_one_step_in_an_interval(interval):
    """Gradients that stay as they are: each tooth is N clean steps, and the one that overflows."""
    steps = 10 * (interval + 1)
    history = simulate([1.0] * steps, init_scale=2.0**15, growth_interval=interval)
    assert sum(history.skipped) == 10
    assert {math.log2(scale) for scale in history.scales} == {15, 16}


def test_a_start_that_is_too_high_costs_one_step_for_each_power_of_two():
    history = simulate([1.0] * 100, init_scale=2.0**40)
    assert history.skipped == [True] * 25 + [False] * 75


def scaler_with(**settings):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, **settings)


def test_a_missing_update_is_refused_in_the_second_iteration():
    weight = nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), scaler_with()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update"):
        scaler.step(optimizer)


def test_a_scale_of_zero_does_not_become_smaller():
    weight = nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**-149)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 0


def test_a_fused_optimizer_is_called_although_it_skips():
    weight = nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.Adam([weight], lr=0.1, fused=True), scaler_with()
    calls, step = [], optimizer.step
    optimizer.step = lambda *args, **kwargs: (calls.append(1), step(*args, **kwargs))[1]
    scaler.scale(weight.sum() * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (calls, weight.item(), scaler.get_scale()) == ([1], 1.0, 512.0)


def test_a_scheduler_that_moves_on_a_skipped_first_step_warns():
    weight = nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), scaler_with()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    scaler.scale(weight.sum() * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        scheduler.step()


def test_clipping_an_infinity_away_does_not_save_the_step():
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), scaler_with()
    scaler.scale((weight * torch.tensor([math.inf, 1.0])).sum()).backward()
    scaler.unscale_(optimizer)
    weight.grad.nan_to_num_(posinf=0.0)
    scaler.step(optimizer)
    assert weight.tolist() == [1, 1]


def test_a_scaler_of_ones_own_can_take_the_place_of_pytorchs_on_the_page():
    """What the text after exercise 5.3 invites to, with the page's own solution."""
    cells = re.split(r"^# %%.*\n", PAGE, flags=re.MULTILINE)
    names = {"__name__": "page", "device": "cpu"}
    for start in ("import copy", "images, labels", "def one_step", "class LossScaler", "def trained"):
        (cell,) = (each for each in cells if each.lstrip().startswith(start))
        exec(compile(cell, "page", "exec"), names)
    own = names["LossScaler"](2.0**24, growth_interval=20)
    torchs = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=20)
    (own_model, own_scales), (model, scales) = (names["trained"](each, steps=30) for each in (own, torchs))
    assert own_scales == scales
    assert len(set(scales)) > 3
    assert torch.equal(names["weights"](own_model), names["weights"](model))
