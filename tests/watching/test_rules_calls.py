"""The rules about a scaler's calls, in loops of other styles than those of their docstrings."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from amp_lab.watching.rules.rule import RULES
from tests.watching.bench import Bench, ids, report


def right(b: Bench):
    for loss in b.losses:
        b.optimizer.zero_grad()
        b.scaler.scale(loss).backward()
        b.scaler.unscale_(b.optimizer)
        clip_grad_norm_(b.model.parameters(), 1.0)
        b.scaler.step(b.optimizer)
        b.scaler.update()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("overflow", [(), (0, 1, 2)])
def test_a_right_loop_gets_nothing(kind, overflow):
    assert not list(report(right, Bench(kind, overflow=overflow)).all)


@pytest.mark.parametrize("fused", [False, True])
def test_a_right_loop_with_a_fused_optimizer_gets_nothing(fused):
    assert not list(report(right, Bench("AdamW", overflow=(1,), fused=fused)).all)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_right_loop_with_a_disabled_scaler_gets_nothing(dtype):
    assert not list(report(right, Bench(dtype=dtype, enabled=False)).all)


def no_update(b: Bench):
    index = 0
    while index < 4:
        b.optimizer.zero_grad()
        b.scaler.scale(b.loss(*b.batch(index))).backward()
        b.scaler.step(b.optimizer)
        index += 1


def no_update_with_clipping(b: Bench):
    class Trainer:
        def step(self, x, y):
            b.optimizer.zero_grad(set_to_none=False)
            b.scaler.scale(b.loss(x, y)).backward()
            b.scaler.unscale_(b.optimizer)
            clip_grad_norm_(b.model.parameters(), 1.0)
            b.scaler.step(b.optimizer)

    trainer = Trainer()
    for x, y in b.batches:
        trainer.step(x, y)


def update_only_sometimes(b: Bench):
    for index, loss in enumerate(b.losses):
        b.optimizer.zero_grad()
        b.scaler.scale(loss).backward()
        b.scaler.step(b.optimizer)
        if index % 3 != 1:
            b.scaler.update()


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("train", [no_update, no_update_with_clipping, update_only_sometimes])
def test_a_missing_update(train, kind):
    found = report(train, Bench(kind))
    assert found.ids == ("update-missing",)
    (diagnosis,) = found.diagnoses
    assert ".step(b.optimizer)" in diagnosis.where.text
    assert "b.scaler.update() was not called after b.scaler.step(b.optimizer)" in diagnosis.sentence
    assert "+" in diagnosis.fix.diff
    assert "b.scaler.update()" in diagnosis.fix.diff


def test_the_same_loops_with_a_disabled_scaler_get_nothing():
    for train in (no_update, no_update_with_clipping, update_only_sometimes, stepped_twice_in_a_helper):
        assert "update-missing" not in ids(train, Bench(dtype=None, enabled=False))


def stepped_twice_in_a_helper(b: Bench):
    def step():
        b.scaler.step(b.optimizer)

    for loss in b.losses:
        b.optimizer.zero_grad()
        b.scaler.scale(loss).backward()
        step()
        step()
        b.scaler.update()


def test_a_step_taken_twice_by_the_same_line():
    (diagnosis,) = report(stepped_twice_in_a_helper).diagnoses
    assert diagnosis.id == "step-twice"
    assert "this line ran twice" in diagnosis.fix.words


def test_a_break_in_place_of_a_continue_is_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            if clip_grad_norm_(b.model.parameters(), 1.0) > 0:
                break

    assert ids(train) == []


def test_turning_back_without_unscale_is_right():
    def train(b):
        for index, loss in enumerate(b.losses):
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            if index == 1:
                continue
            b.scaler.step(b.optimizer)
            b.scaler.update()

    assert ids(train) == []


def test_turning_back_after_unscale_where_zero_grad_stands_at_the_end():
    def train(b):
        for index, loss in enumerate(b.losses):
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            if index == 2:
                continue
            b.scaler.step(b.optimizer)
            b.scaler.update()
            b.optimizer.zero_grad()

    found = report(train)
    assert found.ids == ("continue-before-update",)
    assert "continue" in found.diagnoses[0].fix.diff


def test_an_if_around_step_and_update():
    def train(b):
        for index, loss in enumerate(b.losses):
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            if index != 2:
                b.scaler.step(b.optimizer)
                b.scaler.update()

    assert ids(train) == ["continue-before-update"]


def test_update_with_a_given_scale_between_backward_and_step():
    def train(b):
        for index, loss in enumerate(b.losses):
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.update(2.0 ** (8 + index % 2))
            b.scaler.step(b.optimizer)
            b.scaler.update()

    (diagnosis,) = report(train).diagnoses
    assert diagnosis.id == "update-before-step"
    assert "from 1,024 to 256" in diagnosis.sentence
    assert "4 times too large" in diagnosis.sentence


def test_a_scale_given_at_the_end_of_each_step_is_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.step(b.optimizer)
            b.scaler.update(512.0)

    assert ids(train) == []


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if rule.look.__module__.endswith((".calls", ".updates"))]
)
def test_a_rule_says_something_of_its_own(rule):
    assert len(rule.title) < 70
    assert rule.look.__doc__.count("Wrong") >= 1
