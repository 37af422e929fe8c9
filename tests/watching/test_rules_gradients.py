"""The rules about zero_grad and missing gradients, in other styles, and right loops that look like them."""

import copy

import pytest
import torch
from torch import nn

from tests.watching.bench import Bench, ids, report


def step(b: Bench):
    b.scaler.step(b.optimizer)
    b.scaler.update()


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_without_zero_grad_everything_after_an_overflow_follows_from_it(kind):
    def train(b):
        for _ in range(4):
            for loss in b.losses:
                b.scaler.scale(loss).backward()
                step(b)

    found = report(train, Bench(kind, overflow=(2,)))
    assert found.ids == ("zero-grad-missing",)
    assert "overflow of step 3" in found.diagnoses[0].sentence
    assert {each.id for each in found.all} & {"scale-collapse", "every-step-skipped"}


@pytest.mark.parametrize("way", ["optimizer", "model", "zeros", "hand", "hand zeros"])
def test_every_way_to_zero_gradients_is_right(way):
    def train(b):
        for loss in b.losses:
            match way:
                case "optimizer":
                    b.optimizer.zero_grad()
                case "model":
                    b.model.zero_grad()
                case "zeros":
                    b.optimizer.zero_grad(set_to_none=False)
                case "hand":
                    for p in b.model.parameters():
                        p.grad = None
                case "hand zeros":
                    for p in b.model.parameters():
                        if p.grad is not None:
                            p.grad.zero_()
            b.scaler.scale(loss).backward()
            step(b)

    assert ids(train, Bench(steps=40)) == []


@pytest.mark.parametrize("last", [False, True])
def test_zero_grad_at_the_end_or_just_before_backward_is_right(last):
    def train(b):
        for x, y in b.batches:
            loss = b.loss(x, y)
            if not last:
                b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            step(b)
            if last:
                b.optimizer.zero_grad()

    assert ids(train, Bench(overflow=(0, 1))) == []


def test_a_step_that_the_user_leaves_out_with_its_gradients():
    def train(b):
        for index, loss in enumerate(b.losses):
            b.scaler.scale(loss).backward()
            if index == 2:
                b.optimizer.zero_grad()
                continue
            step(b)
            b.optimizer.zero_grad()

    assert ids(train) == []


def test_zero_grad_left_out_only_after_an_overflow():
    def train(b):
        while b.batches:
            x, y = b.batches.pop(0)
            b.scaler.scale(b.loss(x, y)).backward()
            before = b.scaler.get_scale()
            step(b)
            if b.scaler.get_scale() < before:
                continue
            b.optimizer.zero_grad()

    found = report(train, Bench(steps=12, overflow=(3,)))
    assert found.ids == ("zero-grad-skipped",)
    assert found.diagnoses[0].sentence.startswith("Step 4 was skipped")


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_zeroed_between_backward_and_step_in_silence(kind):
    def train(b):
        for loss in b.losses:
            b.scaler.scale(loss).backward()
            b.model.zero_grad(set_to_none=False)
            step(b)

    found = report(train, Bench(kind))
    assert found.ids == ("zero-grad-before-step",)
    assert "set them to zero" in found.diagnoses[0].sentence


def test_a_second_optimizer_that_rests_is_right_without_a_scaler():
    def train(b):
        for index, (x, y) in enumerate(b.batches):
            b.optimizer.zero_grad()
            b.optimizer_b.zero_grad()
            b.loss(x, y, b.other if index > 2 else b.model).backward()
            b.optimizer.step()
            b.optimizer_b.step()

    b = Bench(dtype=None)
    b.scaler = None
    assert ids(train, b, two=True) == []


def test_a_frozen_layer_in_the_optimizer_is_right():
    def train(b):
        b.model.bias.requires_grad_(False)
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            step(b)

    assert ids(train) == []


def test_an_optimizer_of_a_copy_tells_that_its_parameters_are_others():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            step(b)

    b = Bench()
    b.optimizer = torch.optim.SGD(copy.deepcopy(b.model).parameters(), lr=0.1)
    found = report(train, b)
    assert found.ids == ("no-gradients",)
    assert (
        "none of its 2 parameters had a gradient: none of them belongs to the model"
        in found.diagnoses[0].sentence
    )


@pytest.mark.parametrize(("whose", "root"), [(0, ["parameters-without-optimizer"]), (1, [])])
def test_a_part_in_no_optimizer_is_told_only_if_it_is_the_last(whose, root):
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.scaler.scale(b.loss(x, y)).backward()
            step(b)

    b = Bench()
    b.model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    b.optimizer = torch.optim.SGD(b.model[whose].parameters(), lr=0.01)
    assert ids(train, b) == root


def test_a_head_replaced_after_the_optimizer_was_made():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.loss(x, y).backward()
            b.optimizer.step()

    b = Bench(dtype=None)
    b.scaler = None
    b.model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    b.optimizer = torch.optim.SGD(b.model.parameters(), lr=0.01)
    b.model[1] = nn.Linear(8, 2)
    found = report(train, b)
    assert found.ids == ("parameters-replaced",)
    assert found.diagnoses[0].sentence.startswith("2 parameters of the 4")
