"""The rules about scaled losses, own steps and backward passes: other styles, and right loops that look like them."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from tests.watching.bench import Bench, ids, report


def step(b: Bench):
    b.scaler.step(b.optimizer)
    b.scaler.update()


def test_one_unscaled_loss_among_scaled_ones():
    def train(b):
        for index, loss in enumerate(b.losses):
            b.optimizer.zero_grad()
            (loss if index == 2 else b.scaler.scale(loss)).backward()
            step(b)

    found = report(train, Bench("Adam"))
    assert found.ids == ("unscaled-backward",)
    assert "by 1,024 in step 3:" in found.diagnoses[0].sentence


def test_at_a_scale_of_one_nothing_is_lost():
    def train(b):
        b.scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=100)
        b.scaler.scale(torch.ones(()))
        for loss in b.losses:
            b.optimizer.zero_grad()
            loss.backward()
            step(b)

    assert "unscaled-backward" not in ids(train, Bench(dtype=torch.bfloat16))


def test_a_loss_that_the_user_scales_himself():
    def train(b):
        b.scaler.scale(torch.ones(()))
        for loss in b.losses:
            b.optimizer.zero_grad()
            (loss * b.scaler.get_scale()).backward()
            step(b)

    assert "unscaled-backward" not in ids(train)


def test_a_scaled_loss_that_is_logged_and_used():
    def train(b):
        log = []
        for loss in b.losses:
            b.optimizer.zero_grad()
            scaled = b.scaler.scale(loss)
            log.append(scaled.item())
            (scaled / 2).backward()
            step(b)

    assert ids(train) == []


def test_scaled_twice_by_a_helper():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(b.scaler.scale(loss) / 2).backward()
            step(b)

    found = report(train)
    assert found.ids == ("scaled-twice",)
    assert "1,024 times too large" in found.diagnoses[0].sentence or "scale" in found.diagnoses[0].sentence


def test_two_losses_scaled_in_one_call_are_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            torch.autograd.backward(b.scaler.scale([b.loss(x, y), b.loss(-x, y)]))
            step(b)

    assert ids(train) == []


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_an_own_step_in_one_branch(kind):
    def train(b):
        for index, loss in enumerate(b.losses):
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            if index == 3:
                b.optimizer.step()
            else:
                step(b)

    found = report(train, Bench(kind))
    assert found.ids == ("optimizer-step-instead",)
    assert "in step 4 in place of b.scaler.step(b.optimizer)" in found.diagnoses[0].sentence
    assert "b.scaler.step(b.optimizer)" in found.diagnoses[0].fix.diff


def test_an_own_step_that_looks_whether_the_norm_is_finite_is_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            norm = clip_grad_norm_(b.model.parameters(), 1.0)
            if norm.isfinite():
                b.optimizer.step()
            b.scaler.update()

    assert ids(train, Bench(overflow=(1,))) == []


def test_an_own_step_that_takes_an_overflow():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            b.optimizer.step()
            b.scaler.update()

    found = report(train, Bench(overflow=(2,)))
    assert found.ids == ("optimizer-step-instead",)
    assert "overflowed, and the weights took them" in found.diagnoses[0].sentence
    assert found.worst.name == "WRONG"
    quiet = report(train)
    assert quiet.ids == ("optimizer-step-instead",)
    assert quiet.worst.name == "RISK"


def test_gradients_unscaled_by_hand_and_an_own_step_are_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            for p in b.model.parameters():
                p.grad.div_(1024.0)
            b.optimizer.step()

    assert "optimizer-step-instead" not in ids(train)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_own_steps_without_a_scaler_are_right(dtype):
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            loss.backward()
            b.optimizer.step()

    b = Bench(dtype=dtype)
    b.scaler = None
    assert ids(train, b) == []


def test_own_steps_with_a_disabled_scaler_are_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.optimizer.step()
            b.scaler.update()

    assert ids(train, Bench(dtype=None, enabled=False)) == []


def test_lbfgs_in_fp32_is_right():
    def train(b):
        def closure():
            b.optimizer.zero_grad()
            loss = b.loss(*b.batch())
            loss.backward()
            return loss

        for _ in range(3):
            b.optimizer.step(closure)

    b = Bench("LBFGS", dtype=None)
    b.scaler = None
    assert ids(train, b) == []


def test_a_loss_sent_backward_in_two_functions():
    def train(b):
        def log(loss):
            loss.backward(retain_graph=True)
            return b.model.weight.grad.norm()

        for loss in b.losses:
            b.optimizer.zero_grad()
            log(loss)
            b.scaler.scale(loss).backward()
            step(b)

    assert ids(train) == ["backward-twice"]


def test_two_losses_of_one_graph_and_a_penalty_are_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            x = x.clone().requires_grad_()
            loss = b.loss(x, y)
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            b.scaler.scale(loss + slope.square().sum()).backward()
            step(b)

    assert ids(train) == []


def test_a_backward_pass_repeated_after_zero_grad_is_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward(retain_graph=True)
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            step(b)

    assert "backward-twice" not in ids(train)


def test_a_loss_made_from_an_item():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(torch.tensor(loss.item())).backward()
            step(b)

    found = report(train)
    assert found.ids == ("loss-without-graph",)
    assert ".item()" in found.diagnoses[0].sentence


def test_no_scaler_is_put_around_a_module():
    def train(b):
        b.scaler.scale(torch.ones(()))
        for loss in b.losses:
            b.optimizer.zero_grad()
            torch.autograd.backward(loss)
            step(b)

    (found,) = [each for each in report(train).all if each.id == "unscaled-backward"]
    assert "scale(torch.autograd)" not in str(found.fix)


def test_a_gradient_that_is_scaled_makes_scaled_gradients():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            loss.backward(gradient=b.scaler.scale(torch.ones(())))
            clip_grad_norm_(b.optimizer.param_groups[0]["params"], 1.0)
            step(b)

    assert ids(train) == ["clip-before-unscale"]
