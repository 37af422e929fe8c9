"""What the checks of lesson 05 lean on: a given scaler that is right, and random runs in which things happen."""

import functools

import pytest
import torch

from amp_lab.course.judging import expect
from amp_lab.course.lessons.l05 import building, random_runs
from amp_lab.course.lessons.l05.given import ForgetfulScaler
from amp_lab.course.lessons.l05.runs import Net, play

NUMBERS = range(random_runs.RUNS)
SETTINGS = {"init_scale": 2.0**10, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3}


of_torch = functools.partial(torch.amp.GradScaler, "cpu")


@functools.cache
def run(number, kind=of_torch):
    settings, plans = random_runs.planned(number)
    return plans, random_runs.train(kind(**settings), plans)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_given_scaler_does_what_pytorchs_does(number):
    (_, given), (_, right) = run(number, ForgetfulScaler), run(number)
    assert all(map(expect.alike, given, right))


def test_a_given_scaler_that_starts_elsewhere_is_told_from_it():
    settings, plans = random_runs.planned(0)
    other = random_runs.train(ForgetfulScaler(**settings | {"init_scale": 2.0**5}), plans)
    assert not all(map(expect.alike, other, run(0)[1]))


def test_random_runs_overflow_by_themselves_and_one_optimizer_at_a_time():
    overflows = mixed = grown = clean = 0
    for number in NUMBERS:
        plans, seen = run(number)
        scale = random_runs.planned(number)[0]["init_scale"]
        for plan, after in zip(plans, seen, strict=True):
            used = [each for each in plan.inputs if each is not None]
            finite = all(x.isfinite().all() for inputs in used for x in inputs)
            overflows += finite and sum(after.stepped) < len(used)
            mixed += 0 < sum(after.stepped) < len(used)
            clean += sum(after.stepped) == len(used)
            grown += after.scale > scale
            scale = after.scale
        assert all(weight.isfinite().all() for weight in seen[-1].weights)
    assert min(overflows, mixed, grown) >= 5
    assert clean >= 50


def patterns():
    return [each for group in building.GROUPS for each in group.runs]


@pytest.mark.parametrize(("pattern", "unscale"), patterns())
def test_what_a_run_should_show_is_what_pytorchs_scaler_shows(pattern, unscale):
    scaler = torch.amp.GradScaler("cpu", **SETTINGS)
    assert play(scaler, pattern, unscale=unscale) == building.simulate(pattern, unscale)


def test_a_zero_gradient_moves_the_weights_of_a_run():
    net = Net()
    (net.loss() * 0).backward()
    net.optimizer.step()
    assert not any(expect.alike(after, torch.ones_like(after)) for after in net.weights())
