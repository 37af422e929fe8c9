"""What the quiz of lesson 07 says of loops, tried."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from amp_lab.course.lessons.l07.quiz import QUIZ


def right(question):
    return next(option.text for option in question.options if option.right)


def set_up(init_scale, optimizer=torch.optim.SGD, **settings):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    return (
        net,
        optimizer(net.parameters(), **{"lr": 0.1, **settings}),
        torch.amp.GradScaler("cpu", init_scale),
    )


def inputs(steps, overflow_at=None):
    draws = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(8, 4, generator=draws)
        yield x * (math.inf if step == overflow_at else 1.0)


def train(net, opt, scaler, batches, *, zero=True, scaled=True):
    """Return the losses and the scale after each step."""
    losses, scales = [], []
    for x in batches:
        if zero:
            opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = net(x)
        loss = (output.float() - 1).square().mean()
        (scaler.scale(loss) if scaled else loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


def test_without_zero_grad_one_overflow_ends_it():
    calm = [train(*set_up(2.0**10), inputs(60), zero=zero)[0] for zero in (True, False)]
    assert calm[1][:20] == pytest.approx(calm[0][:20], rel=0.1)
    assert calm[1][-1] < 0.01 * calm[1][0]
    net, opt, scaler = set_up(2.0**10)
    train(net, opt, scaler, inputs(5), zero=False)
    before = net.weight.detach().clone()
    losses, scales = train(net, opt, scaler, inputs(200, overflow_at=0), zero=False)
    assert torch.equal(net.weight, before)
    assert scales[-1] == 0
    assert all(map(math.isfinite, losses[1:]))
    assert right(QUIZ[0]).startswith("Every later step is skipped")


def test_between_backward_and_step_the_norm_is_scaled():
    norms = {}
    for scale in (1.0, 2.0**8, 2.0**9):
        net, _, scaler = set_up(scale)
        scaler.scale((net(next(inputs(1))) - 1).square().mean()).backward()
        norms[scale] = nn.utils.get_total_norm([parameter.grad for parameter in net.parameters()]).item()
    assert norms[2.0**8] == pytest.approx(2.0**8 * norms[1.0])
    assert norms[2.0**9] == pytest.approx(2 * norms[2.0**8])
    assert right(QUIZ[1]).startswith("The true norm times the scale")


def test_an_update_belongs_to_the_end_of_the_window():
    net, _, scaler = set_up(2.0**8)
    scaler.scale(torch.ones(()))
    with pytest.raises(AssertionError, match="No inf checks"):  # before the first backward
        scaler.update()
    # After each micro-batch: parts of one sum get different scales as soon as one overflows, or the scale grows.
    scaler = torch.amp.GradScaler("cpu", 2.0**8, growth_interval=1)
    for x in inputs(2):
        scaler.scale((net(x) - 1).square().mean()).backward()
        scaler.update(2 * scaler.get_scale())
    mixed = net.weight.grad / scaler.get_scale()
    net.zero_grad()
    sum((net(x) - 1).square().mean() for x in inputs(2)).backward()
    factors = mixed / net.weight.grad
    assert factors.max() - factors.min() > 0.01  # no single division makes them right
    assert right(QUIZ[2]) == "Once, after the step of the fourth one."


def test_the_scale_differs_after_growth_and_falls_after_a_skip_of_any_kind():
    net, opt, _ = set_up(1.0)
    scaler = torch.amp.GradScaler("cpu", 2.0**8, growth_interval=3)
    scales = train(net, opt, scaler, inputs(3))[1]
    assert scales == [2.0**8, 2.0**8, 2.0**9]
    net, opt, scaler = set_up(2.0**8, fused=True)
    assert train(net, opt, scaler, inputs(1, overflow_at=0))[1] == [2.0**7]
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", 2.0**8)
    scaler.scale((math.inf * weights[0] + weights[1]).sum()).backward()
    for opt in [torch.optim.SGD([weight], lr=1.0) for weight in weights]:
        scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 2.0**7
    assert right(QUIZ[3]).startswith("When the scale grows")


def test_adam_hides_the_factor_and_not_the_underflow():
    moved = {}
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        for scaled in (True, False):
            net, opt, scaler = set_up(2.0**16, optimizer, lr=1e-2)
            start = net.weight.detach().clone()
            train(
                net, opt, scaler, inputs(1), scaled=True
            )  # a scaler refuses to step before its first scale()
            train(net, opt, scaler, inputs(5), scaled=scaled)
            moved[optimizer, scaled] = (net.weight - start).norm().item()
    assert moved[torch.optim.Adam, False] == pytest.approx(moved[torch.optim.Adam, True], rel=0.5)
    assert moved[torch.optim.SGD, False] < 0.5 * moved[torch.optim.SGD, True]
    zeros = {}
    for scale in (1.0, 2.0**16):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        with torch.autocast("cpu", torch.float16):
            loss = 1e-7 * net(next(inputs(1))).float().square().mean()
        (scale * loss).backward()
        zeros[scale] = (net[0].weight.grad == 0).double().mean().item()
    assert zeros[1.0] > 0.5
    assert zeros[2.0**16] == 0
    assert right(QUIZ[4]).startswith("No: FP16 loses small gradients")


def test_what_is_forgotten_in_a_checkpoint_tells_itself_apart():
    def resumed(*forgotten):
        net, opt, scaler = set_up(2.0**10, momentum=0.9)
        train(net, opt, scaler, inputs(5))
        states = [copy.deepcopy(each.state_dict()) for each in (net, opt, scaler)]
        new = dict(zip(("net", "opt", "scaler"), set_up(2.0**24, momentum=0.9), strict=True))
        for (name, each), state in zip(new.items(), states, strict=True):
            if name not in forgotten:
                each.load_state_dict(state)
        scales = train(*new.values(), inputs(8))[1]
        train(net, opt, scaler, inputs(8))
        falls = sum(after < before for before, after in itertools.pairwise(scales))
        return torch.equal(net.weight, new["net"].weight), falls

    assert resumed() == (True, 0)
    assert resumed("opt") == (False, 0)
    same, falls = resumed("scaler")
    assert not same
    assert falls > 0
    assert right(QUIZ[5]) == "The state of the scaler."
