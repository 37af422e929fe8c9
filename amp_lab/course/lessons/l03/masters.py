"""Exercise 3.2: FP32 masters of FP16 parameters.

What an answer does is watched from outside (see `trainee`). Values are such that every right step is exact, whichever
way it is written; only the last case draws them at random.
"""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch.nn import Parameter

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l03.trainee import HALF, SINGLE, Trainee, is_all, number_in, parameter

_NEAR = 1e-6  # a step of size 1 or less in FP32, in whatever order it is computed
_LONG_HISTORY = 4  # operations; one that is computed anew for each step has two or three


def _two_steps(ask: Ask) -> None:
    """Large steps, which FP16 can take as well: who updates what, and what is copied where."""
    of = Trainee(ask, [parameter(1.0, 0.5), parameter(1 + 2.0**-20, 0.5, SINGLE)])
    of.step(0.5)
    of.step(0.5)
    (half, single), (master, other) = of.parameters, of.masters()
    if not is_all(master, 0.5):
        _explain_master(of, master, half)
    if not is_all(half, 0.5):
        ideas = {1.0: "never-copied-back", 0.75: "copied-back-too-early"}
        of.wrong(ideas.get(half[0].item(), "parameter-not-master"), 0, half, number_in(master))
    if not is_all(other, 0.5 + 2.0**-20):
        passed_over = is_all(other, 1 + 2.0**-20)
        want = number_in(torch.tensor(0.5 + 2.0**-20))
        of.wrong("fp32-passed-over" if passed_over else "wrong-master", 1, other, want)
    if not torch.equal(single.detach(), other):
        rounded = torch.equal(single.detach(), other.half().float())
        of.wrong("fp32-rounded" if rounded else _of_single(single), 1, single, number_in(other))


def _explain_master(of: Trainee, master: torch.Tensor, half: torch.Tensor) -> NoReturn:
    """Say what a master became that should be 0.5, after two steps of 0.25 from 1."""
    if is_all(master, 1.0) and is_all(half, 0.75):
        of.wrong("master-not-kept", 0, master, 0.5)
    if is_all(master, 1.0) and not is_all(half, 1.0):
        of.wrong("updates-fp16-weights", 0, master, 0.5, weight=number_in(half))
    ideas = {1.5: "wrong-direction", 0.0: "lr-ignored"}
    of.wrong(ideas.get(master[0].item(), "wrong-master"), 0, master, 0.5)


def _of_single(single: torch.Tensor) -> str:
    return "never-copied-back" if is_all(single, 1 + 2.0**-20) else "parameter-not-master"


def _many_small_steps(ask: Ask) -> None:
    """Eight steps, each too small for FP16: only FP32 masters can add them up."""
    of = Trainee(ask, [parameter(1.0, 2.0**-10)])
    of.step(2.0**-3, times=8)
    (half,), (master,) = of.parameters, of.masters()
    right = 1 - 2.0**-10
    if is_all(master, right) and not is_all(half, right):
        of.wrong("parameter-not-master", 0, half, number_in(master))
    if not is_all(master, right):
        ideas = {1 - 2.0**-13: "masters-made-anew", 1.0: "steps-lost"}
        of.wrong(ideas.get(master[0].item(), "wrong-master"), 0, master, right)


def _small_product(ask: Ask) -> None:
    """A gradient that FP16 holds and a step that it does not."""
    of = Trainee(ask, [parameter(2.0**-6, 2.0**-20)])
    of.step(2.0**-6)
    (master,) = of.masters()
    right = 2.0**-6 - 2.0**-26
    if not is_all(master, right):
        of.wrong("product-in-fp16" if is_all(master, 2.0**-6) else "wrong-master", 0, master, right)


def _scribbles(ask: Ask) -> None:
    """Write into the parameters, before the first step and after it: the masters must not notice."""
    of = Trainee(ask, [parameter(1.0, 0.5), parameter(1.0, 0.5, SINGLE)])
    for want in (0.75, 0.5):
        of.scribble(7.0)
        of.step(0.5)
        (half, single), (master, other) = of.parameters, of.masters()
        if not is_all(master, want) or not is_all(half, want):
            of.wrong("masters-made-anew" if is_all(half, 6.75) else "parameter-not-master", 0, half, want)
        if not is_all(other, want) or not is_all(single, want):
            of.wrong("aliases" if is_all(single, 6.75) else "parameter-not-master", 1, single, want)


def _scribbles_that_spread(ask: Ask) -> None:
    """Write what no sum and no product brings back: a parameter is written over, whatever is in it."""
    for value in (65504.0, math.inf, math.nan):
        of = Trainee(ask, [parameter(1.0, 0.5), parameter(1.0, 0.5, SINGLE)])
        of.scribble(value)
        of.step(0.5)
        for number, each in enumerate(of.parameters):
            if not is_all(each, 0.75):
                of.wrong("changed-not-overwritten", number, each, 0.75)


def _hardly_a_step(ask: Ask) -> None:
    """Steps that FP16 cannot show, and none at all: each writes its parameter, FP16 or FP32, all the same."""
    of = Trainee(ask, [parameter(1.0, 2.0**-10), parameter(1.0, 2.0**-10, SINGLE)])
    of.step(2.0**-3)
    _expect_written(of, 1 - 2.0**-13, before=1.0)
    of.scribble(7.0)
    of.step(2.0**-3)
    _expect_written(of, 1 - 2.0**-12, before=7.0)
    for number, each in enumerate(of.parameters):
        of.set_grad(number, torch.zeros_like(each))
    of.scribble(7.0)
    of.step(2.0**-3)
    _expect_written(of, 1 - 2.0**-12, before=7.0)


def _expect_written(of: Trainee, want: float, before: float) -> None:
    """Look whether both masters are `want`, and both parameters, which were `before`, the same, rounded."""
    for number, (each, master) in enumerate(zip(of.parameters, of.masters(), strict=True)):
        if not is_all(master, want):
            of.wrong("wrong-master", number, master, want)
        rounded = master.to(each.dtype)
        if not torch.equal(each.detach(), rounded):
            rests = is_all(each, before)
            of.wrong("not-written" if rests else "parameter-not-master", number, each, number_in(rounded))


def _beyond_fp16(ask: Ask) -> None:
    """A master leaves the range of FP16 and comes back."""
    of = Trainee(ask, [parameter(60000.0, None)])
    for grad, want in ((-60000.0, 90000.0), (60000.0, 60000.0)):
        of.set_grad(0, torch.full((2,), grad).half())
        of.step(0.5)
        _expect_as_any_cast(of, want)


def _not_finite(ask: Ask) -> None:
    """Gradients of infinity and NaN: to find them is the work of somebody else."""
    for grad in (math.inf, -math.inf, math.nan):
        of = Trainee(ask, [parameter(1.0, grad)])
        of.step(0.5)
        (master,), want = of.masters(), 1.0 - 0.5 * grad
        if not is_all(master, want):
            of.wrong("hides-not-finite", 0, master, want)
        _expect_as_any_cast(of, want)


def _expect_as_any_cast(of: Trainee, want: float) -> None:
    (half,), (master,) = of.parameters, of.masters()
    if not is_all(master, want):
        of.wrong("wrong-master", 0, master, want)
    rounded = torch.tensor(want).half().item()
    if not is_all(half, rounded):
        of.wrong("stops-at-the-end", 0, half, rounded)


def _without_gradient(ask: Ask) -> None:
    """A parameter that took no part in the loss: its gradient is None, and others come after it."""
    of = Trainee(ask, [parameter(1.0, None), parameter(1.0, 0.5)])
    try:
        of.step(0.5)
    except Contained as contained:
        if contained.fault != "exception" or isinstance(contained.error, NotImplementedError):
            raise
        seen = f"raised `{type(contained.error).__name__}: {contained.error}`"
        raise Mistake("fails-without-gradient", call=of.call, got=seen) from None
    first, second = of.parameters
    if not is_all(first, 1.0):
        of.wrong("moves-without-gradient", 0, first, 1.0)
    if not is_all(second, 0.75):
        of.wrong("stops-without-gradient", 1, second, 0.75)
    of.set_grad(0, torch.full((2,), 0.25).half())
    of.step(0.5)
    if not is_all(first, 0.875):
        of.wrong("forgotten-without-gradient", 0, first, 0.875)


def _generator(ask: Ask) -> None:
    """Parameters as `model.parameters()` gives them: one can go through them once."""
    of = Trainee(ask, [parameter(1.0, 0.5), parameter(2.0, 0.5)], given=iter)
    of.step(0.5)
    for number, (each, want) in enumerate(zip(of.parameters, (0.75, 1.75), strict=True)):
        if not is_all(each, want):
            of.wrong("generator-used-up", number, each, want)


def _like_training(ask: Ask) -> None:
    """Random numbers in all shapes, new gradients for every step, step sizes that change."""
    draw = torch.Generator().manual_seed(0)
    kinds = (((3, 4), HALF), ((5,), SINGLE), ((), HALF))
    parameters = [Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape, dtype in kinds]
    of = Trainee(ask, parameters)
    wants = [each.detach().double() for each in parameters]
    for lr in (0.1, 0.1, 0.03, 0.7, 0.01):
        grads = [torch.randn(each.shape, generator=draw).to(each.dtype) for each in parameters]
        for number, grad in enumerate(grads):
            of.set_grad(number, grad)
        wants = [want - lr * grad.double() for want, grad in zip(wants, grads, strict=True)]
        of.step(lr)
        for number, (want, master) in enumerate(zip(wants, of.masters(), strict=True)):
            if not torch.allclose(master.double(), want, rtol=_NEAR, atol=_NEAR):
                _show_worst(of, "wrong-master", number, master, want.float())
            after = parameters[number].detach()
            if not torch.equal(after, master.to(after.dtype)):
                _show_worst(of, "parameter-not-master", number, after, master.to(after.dtype))
    if of.history() > _LONG_HISTORY:
        raise Mistake("history-grows", call=of.call, got=f"{of.history()} operations")


def _show_worst(of: Trainee, diagnosis: str, number: int, got: torch.Tensor, want: torch.Tensor) -> NoReturn:
    worst = int((got.double() - want.double()).abs().argmax())
    of.wrong(diagnosis, number, got, number_in(want, worst), at=worst)


@checker("3.2")
def master_weights(ask: Ask) -> None:
    """Watch large steps first, then small ones, then everything that may happen between two steps."""
    for case in (
        _two_steps,
        _many_small_steps,
        _small_product,
        _without_gradient,
        _generator,
        _scribbles,
        _scribbles_that_spread,
        _hardly_a_step,
        _beyond_fp16,
        _not_finite,
        _like_training,
    ):
        case(ask)
