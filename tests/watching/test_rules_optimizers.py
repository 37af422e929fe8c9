"""The rules about several optimizers, and right loops with two that look like them."""

import pytest
import torch

from tests.watching.bench import Bench, ids, report


def both(b: Bench, x, y):
    b.optimizer.zero_grad()
    b.optimizer_b.zero_grad()
    b.scaler.scale(b.loss(x, y) + b.loss(x, y, b.other)).backward()


@pytest.mark.parametrize("overflow", [(), (0,)])
def test_update_between_the_steps(overflow):
    def train(b):
        for x, y in b.batches:
            both(b, x, y)
            b.scaler.step(b.optimizer)
            b.scaler.update()
            b.scaler.step(b.optimizer_b)
            b.scaler.update()

    found = report(train, Bench(overflow=overflow), two=True)
    assert found.ids == ("update-between-optimizers",)
    said = "multiplied by 1,024 and divided by 512, and are 2 times too large"
    assert (said in found.diagnoses[0].sentence) == bool(overflow)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_two_optimizers_in_a_list_are_right(kind):
    def train(b):
        for x, y in b.batches:
            both(b, x, y)
            for optimizer in (b.optimizer, b.optimizer_b):
                b.scaler.unscale_(optimizer)
            for optimizer in (b.optimizer, b.optimizer_b):
                b.scaler.step(optimizer)
            b.scaler.update()

    assert ids(train, Bench(kind, overflow=(0, 3)), two=True) == []


def test_a_second_optimizer_that_is_forgotten():
    def train(b):
        for x, y in b.batches:
            both(b, x, y)
            b.scaler.step(b.optimizer)
            b.scaler.update()

    found = report(train, two=True)
    assert found.ids == ("optimizer-never-stepped",)
    assert "b.optimizer_b has not stepped in 6 steps" in found.diagnoses[0].sentence


def test_an_optimizer_whose_turn_has_not_come_is_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.scaler.scale(b.loss(x, y)).backward()
            b.scaler.step(b.optimizer)
            b.scaler.update()

    assert ids(train, two=True) == []


def gan(b: Bench, zero_critic: str):
    for x, y in b.batches:
        if zero_critic == "before":
            b.optimizer_b.zero_grad()
        b.scaler.scale(b.loss(x, y, b.other)).backward()
        b.scaler.step(b.optimizer_b)
        if zero_critic == "after":
            b.optimizer_b.zero_grad()
        b.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = -b.other(b.model(x).repeat(1, 4)).mean()
        b.scaler.scale(loss).backward()
        b.scaler.step(b.optimizer)
        b.scaler.update()


@pytest.mark.parametrize(
    ("zero_critic", "root"),
    [("before", []), ("after", ["gradients-of-another-loss"]), ("never", ["zero-grad-missing"])],
)
def test_the_generators_loss_leaves_gradients_in_the_critic(zero_critic, root):
    assert ids(lambda b: gan(b, zero_critic), two=True) == root


def test_two_optimizers_with_different_windows_are_right():
    def train(b):
        for index, (x, y) in enumerate(b.batches, 1):
            b.scaler.scale((b.loss(x, y) + b.loss(x, y, b.other)) / 2).backward()
            b.scaler.step(b.optimizer)
            b.optimizer.zero_grad()
            if index % 2 == 0:
                b.scaler.step(b.optimizer_b)
                b.optimizer_b.zero_grad()
            b.scaler.update()

    assert "gradients-of-another-loss" not in ids(train, two=True)


def test_shared_parameters_in_fp32():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.optimizer_b.zero_grad()
            (b.loss(x, y) + b.loss(x, y, b.other)).backward()
            b.optimizer.step()
            b.optimizer_b.step()

    b = Bench(dtype=None)
    b.scaler = None
    b.optimizer_b = torch.optim.SGD([*b.other.parameters(), b.model.weight], lr=0.1)
    found = report(train, b, two=True)
    assert found.ids == ("shared-parameters",)
    assert "share 1 parameter" in found.diagnoses[0].sentence


def test_one_overflow_of_one_optimizer_is_no_alarm():
    def train(b):
        for index, (x, y) in enumerate(b.batches):
            both(b, x, y)
            if index < 3:
                b.other.weight.grad[0, 0] = float("inf")
            b.scaler.step(b.optimizer)
            b.scaler.step(b.optimizer_b)
            b.scaler.update()

    assert ids(train, Bench(steps=20), two=True) == []
