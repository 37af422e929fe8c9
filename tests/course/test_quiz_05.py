"""What the quiz of lesson 05 says of scalers, seen in PyTorch's own."""

import math

import pytest
import torch

from amp_lab.course.lessons.l05.quiz import QUIZ
from amp_lab.scaling import DynamicLossScaler, LossScaleTooSmall


class Run:
    """One weight with an optimizer, and a scaler; FP16 gradients of the size that is asked for."""

    def __init__(self, optimizers=1, scaler=None, **settings):
        self.scaler = scaler or torch.amp.GradScaler("cpu", **settings)
        self.weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(optimizers)]
        self.optimizers = [torch.optim.SGD([weight], lr=2.0**-10) for weight in self.weights]
        self.scale = self.scaler.get_scale()

    def backward(self, *gradients):
        for weight, optimizer, gradient in zip(self.weights, self.optimizers, gradients, strict=True):
            optimizer.zero_grad()
            factor = torch.tensor([gradient]).half()
            self.scaler.scale((weight.half() * factor).float().sum()).backward()

    def step(self, *gradients):
        """Make an iteration and return which weights have moved; the scale is that after it."""
        before = [weight.item() for weight in self.weights]
        self.backward(*gradients)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        self.scale = self.scaler.get_scale()
        return [weight.item() != one for weight, one in zip(self.weights, before, strict=True)]


def right(question):
    return next(option for option in question.options if option.right)


def test_a_first_step_that_is_skipped_is_followed_by_clean_ones():
    run = Run()
    assert run.step(1.0) == [False]
    assert run.weights[0].item() == 1.0
    assert run.scale == 32768
    assert all(run.step(1.0) == [True] for _ in range(100))
    assert run.scale == 32768


SIZE = 1.5  # of gradients that overflow at 65536, and not at 32768


def test_a_growth_factor_of_4_costs_two_steps_in_102():
    run = Run(growth_interval=100, growth_factor=4.0)
    made = [run.step(SIZE)[0] for _ in range(1 + 102 * 3)]
    assert [number for number, moved in enumerate(made) if not moved] == [0, 101, 102, 203, 204, 305, 306]
    assert right(QUIZ[1]).text.startswith("Two in 102")


def test_a_growth_factor_of_2_costs_one_step_in_101():
    run = Run(growth_interval=100)
    made = [run.step(SIZE)[0] for _ in range(101 * 3)]
    assert [number for number, moved in enumerate(made) if not moved] == [0, 101, 202]


def test_an_interval_of_one_skips_every_second_step():
    run = Run(growth_interval=1)
    assert [run.step(1.0)[0] for _ in range(6)] == [False, True] * 3


def test_the_overflow_of_one_optimizer_skips_one_step_and_halves_the_scale_once():
    run = Run(optimizers=2, init_scale=1024.0)
    assert run.step(math.inf, 1.0) == [False, True]
    assert run.scale == 512


@pytest.mark.parametrize("clipped", [True, False])
def test_clipping_does_not_make_an_overflow_forgotten(clipped):
    run = Run(init_scale=1024.0)
    run.backward(math.inf)
    run.scaler.unscale_(run.optimizers[0])
    if clipped:
        torch.nn.utils.clip_grad_value_(run.weights, 1.0)
        assert run.weights[0].grad.item() == 1.0
    run.scaler.step(run.optimizers[0])
    run.scaler.update()
    assert run.weights[0].item() == 1.0
    assert run.scaler.get_scale() == 512


def test_nan_in_the_model_lets_the_scale_sink_to_zero():
    run, steps = Run(optimizers=2), 0
    with torch.no_grad():
        run.weights[0].fill_(math.nan)
    while run.scale:
        run.backward(1.0, math.nan)
        for optimizer in run.optimizers:
            run.scaler.step(optimizer)
        run.scaler.update()
        run.scale, steps = run.scaler.get_scale(), steps + 1
    assert steps == 166
    assert run.weights[1].item() == 1.0
    assert 65536 / 2**16 == 1
    assert "166" in right(QUIZ[4]).explanation


def test_the_scaler_of_this_package_can_have_a_floor():
    run = Run(scaler=DynamicLossScaler(init_scale=4.0, min_scale=1.0))
    assert [run.step(math.nan), run.step(math.nan)] == [[False], [False]]
    assert run.scale == 1
    with pytest.raises(LossScaleTooSmall):
        run.step(math.nan)


def test_a_new_scaler_skips_ten_steps_before_it_is_back_at_64():
    settled, new = Run(init_scale=64.0), Run()
    gradient = 65504.0 / 64  # the largest that does not overflow at 64
    assert settled.step(gradient) == [True]
    made = []
    while new.scale > 64:
        made += new.step(gradient)
    assert made == [False] * 10
    assert new.step(gradient) == [True]
    assert "Ten" in right(QUIZ[5]).text
    assert len(new.scaler.state_dict()) == 5
