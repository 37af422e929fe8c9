"""What the checks of lesson 05 lean on, and what must not upset them.

They lean on a given scaler that is right, and on random runs in which things happen.
"""

import functools
import sys

import pytest
import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.verdict import Raised, Wrong
from amp_lab.course.lessons.l05 import building, random_runs
from amp_lab.course.lessons.l05.given import ForgetfulScaler
from amp_lab.course.lessons.l05.runs import Net, play
from tests.course.answers import l05

pytestmark = pytest.mark.long

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
    overflows = mixed = grown = clean = kept = unstepped = 0
    for number in NUMBERS:
        plans, seen = run(number)
        scale = random_runs.planned(number)[0]["init_scale"]
        for plan, after in zip(plans, seen, strict=True):
            used = [
                each for each, stop in zip(plan.inputs, plan.stops, strict=True) if not (each is None or stop)
            ]
            left_out = len(used) < sum(each is not None for each in plan.inputs)
            finite = all(x.isfinite().all() for inputs in used for x in inputs)
            unstepped += left_out and sum(after.stepped) == len(used) and after.scale < scale
            overflows += finite and sum(after.stepped) < len(used)
            mixed += 0 < sum(after.stepped) < len(used)
            clean += sum(after.stepped) == len(used)
            grown += after.scale > scale
            there = any(grad is not None for grad in after.grads)
            kept += there and not any(after.stepped) and after.scale < scale
            scale = after.scale
        assert all(weight.isfinite().all() for weight in seen[-1].weights)
    assert min(overflows, mixed, grown, kept) >= 5
    assert unstepped >= 2  # only an optimizer whose step was left out can have overflowed
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


# Whatever an answer leaves behind, it gets a verdict and no traceback.


def parameters(optimizer):
    return [each for group in optimizer.param_groups for each in group["params"]]


def to_none(optimizer):
    optimizer.zero_grad()


def to_sparse(optimizer):
    for each in parameters(optimizer):
        each.grad = None if each.grad is None else each.grad.to_sparse()


def to_one_number(optimizer):
    for each in parameters(optimizer):
        each.data = torch.ones(7)


def to_fp64(optimizer):
    for each in parameters(optimizer):
        each.data, each.grad = each.data.double(), None


def to_nobody(optimizer):
    optimizer.param_groups.clear()


SPOILERS = (to_none, to_sparse, to_one_number, to_fp64, to_nobody)


def after(calls, then, kind, method):
    """Make a class that is right for some calls of `method`, all its objects together, and then does `then` as well."""
    made = []

    def changed(self, *args):
        made.append(args)
        got = getattr(kind, method)(self, *args)
        if len(made) > calls:
            then(*args)
        return got

    return type("Changed", (kind,), {method: changed})


@pytest.mark.parametrize("calls", [0, 2, 30])
@pytest.mark.parametrize("method", ["unscale_", "step"])
@pytest.mark.parametrize("spoil", SPOILERS)
def test_what_a_scaler_leaves_behind_does_not_crash_the_check(spoil, method, calls):
    verdict = grade("5.3", after(calls, spoil, l05._Right, method))
    assert isinstance(verdict, (Wrong, Raised)), verdict.text


@pytest.mark.parametrize("number", NUMBERS)
def test_a_random_run_clips_what_is_there(number):
    class Drops(l05._Right):
        def unscale_(self, optimizer):
            super().unscale_(optimizer)
            optimizer.zero_grad()

    settings, plans = random_runs.planned(number)
    seen = random_runs.train(Drops(**settings), plans)
    assert not any(grad is not None for after in seen for grad in after.grads)


@pytest.mark.parametrize("left", [torch.ones(2), object(), {"a": torch.ones(1)}, float("nan"), None])
@pytest.mark.parametrize("calls", [0, 2, 5])
def test_what_is_left_in_a_state_does_not_crash_the_check(left, calls):
    def leave(state):
        state["scale"] = left

    verdict = grade("5.4", after(calls, leave, l05._Saved, "load_state_dict"))
    assert verdict.diagnosis == "mutated-input", verdict.text


def fail(*args):
    raise ValueError("no")


@pytest.mark.parametrize(("exercise", "kind"), [("5.3", l05._Right), ("5.4", l05._Saved)])
@pytest.mark.parametrize("method", ["scale", "unscale_", "step", "update"])
@pytest.mark.parametrize("calls", [0, 30, 60])
def test_a_call_that_raises_is_told_in_whole_sentences(exercise, kind, method, calls):
    verdict = grade(exercise, after(calls, fail, kind, method))
    assert isinstance(verdict, Raised), verdict.text
    assert "It was called as" in verdict.text
    assert ",." not in verdict.text


@pytest.mark.parametrize(
    ("change", "want"), [({"scale": torch.tensor(512.0)}, "here 512.0"), ({"clean_steps": 1.0}, "here 0")]
)
def test_a_wrong_type_is_told_with_the_right_number(change, want):
    verdict = grade("5.2", lambda *args: l05._rule(*args)._replace(**change))
    assert verdict.diagnosis == "wrong-type"
    assert want in verdict.text


def test_watching_leaves_a_profiler_of_the_page_in_place():
    seen = []

    def profile(*args):
        seen.append(args)

    sys.setprofile(profile)
    try:
        verdict = grade("5.2", l05._rule)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert verdict.passed
