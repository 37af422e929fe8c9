"""The rules about clipping: norms as they were seen, and right loops that look wrong."""

import re

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from tests.watching.bench import Bench, ids, report


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_the_sentence_tells_the_norm_that_was_seen_and_the_true_one(kind):
    norms = []

    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            norms.append(clip_grad_norm_(b.model.parameters(), max_norm=1.0).item())
            b.scaler.step(b.optimizer)
            b.scaler.update()

    found = report(train, Bench(kind))
    assert found.ids == ("clip-before-unscale",)
    seen, true = re.search(
        r"a norm of ([\d,.]+) in step 1, and again in 5 more steps.*norm, ([\d,.]+),",
        found.diagnoses[0].sentence,
    ).groups()
    assert number(seen) == pytest.approx(norms[0], rel=0.01)
    assert number(true) == pytest.approx(norms[0] / 1024, rel=0.01)
    assert "+            b.scaler.unscale_(b.optimizer)" in found.diagnoses[0].fix.diff


def test_the_norm_of_a_step_that_did_not_overflow_is_told():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            clip_grad_norm_(b.model.parameters(), 1.0)
            b.scaler.step(b.optimizer)
            b.scaler.update()

    (diagnosis,) = report(train, Bench(overflow=(0,))).diagnoses
    assert diagnosis.id == "clip-before-unscale"
    assert "infinite" not in diagnosis.sentence


def test_by_value_the_limit_is_told():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            clip_grad_value_(b.model.parameters(), 0.1)
            b.scaler.step(b.optimizer)
            b.scaler.update()

    (diagnosis,) = report(train).diagnoses
    assert diagnosis.id == "clip-before-unscale"
    assert "cut gradients at 0.1" in diagnosis.sentence


def test_unscaled_the_wrong_optimizer():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.optimizer_b.zero_grad()
            b.scaler.scale(b.loss(x, y) + b.loss(x, y, b.other)).backward()
            b.scaler.unscale_(b.optimizer_b)
            clip_grad_norm_(b.model.parameters(), 1.0)
            b.scaler.step(b.optimizer)
            b.scaler.step(b.optimizer_b)
            b.scaler.update()

    found = report(train, two=True)
    assert found.ids == ("clip-before-unscale",)
    assert "b.scaler.unscale_(b.optimizer) before" in found.diagnoses[0].fix.words


def test_a_clipping_of_both_after_both_were_unscaled_is_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.optimizer_b.zero_grad()
            b.scaler.scale(b.loss(x, y) + b.loss(x, y, b.other)).backward()
            b.scaler.unscale_(b.optimizer)
            b.scaler.unscale_(b.optimizer_b)
            clip_grad_norm_([*b.model.parameters(), *b.other.parameters()], 1.0)
            b.scaler.step(b.optimizer)
            b.scaler.step(b.optimizer_b)
            b.scaler.update()

    assert ids(train, two=True) == []


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("enabled", [False, None])
def test_clipping_without_unscale_is_right_where_nothing_is_scaled(dtype, enabled):
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            if enabled is None:
                loss.backward()
                clip_grad_norm_(b.model.parameters(), 1.0, error_if_nonfinite=True)
                b.optimizer.step()
            else:
                b.scaler.scale(loss).backward()
                clip_grad_norm_(b.model.parameters(), 1.0)
                b.scaler.step(b.optimizer)
                b.scaler.update()

    b = Bench(dtype=dtype, enabled=False)
    if enabled is None:
        b.scaler = None
    assert ids(train, b) == []


def test_clipping_of_parts_one_after_the_other_is_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            clip_grad_norm_([b.model.weight], 1.0)
            clip_grad_norm_([b.model.bias], 0.1)
            b.scaler.step(b.optimizer)
            b.scaler.update()

    assert ids(train) == []


def test_a_norm_measured_after_the_step_is_right():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.step(b.optimizer)
            get_total_norm([p.grad for p in b.model.parameters()])
            clip_grad_norm_(b.model.parameters(), float("inf"))
            b.scaler.update()

    assert "clip-after-step" not in ids(train)


def test_clipped_before_the_first_backward_pass_of_each_step():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            clip_grad_norm_(b.model.parameters(), 1.0)
            loss.backward()
            b.optimizer.step()

    b = Bench(dtype=None)
    b.scaler = None
    assert ids(train, b) == ["clip-of-nothing"]


def test_an_exception_of_clipping_at_an_overflow():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            b.scaler.unscale_(b.optimizer)
            clip_grad_norm_(b.model.parameters(), 1.0, error_if_nonfinite=True)
            b.scaler.step(b.optimizer)
            b.scaler.update()

    found = report(train, Bench(overflow=(2,)))
    assert found.ids == ("clip-raises-on-overflow",)
    assert found.worst.name == "WRONG"
    assert "in step 3" in found.diagnoses[0].sentence
    assert report(train).worst.name == "RISK"


def test_clipping_in_the_middle_of_a_window():
    def train(b):
        for index, loss in enumerate(b.losses, 1):
            (loss / 3).backward()
            clip_grad_norm_(b.model.parameters(), 1.0)
            if index % 3 == 0:
                b.optimizer.step()
                b.optimizer.zero_grad()

    b = Bench(dtype=None)
    b.scaler = None
    assert ids(train, b) == ["clip-each-micro-batch"]


def test_a_critic_that_is_clipped_before_each_of_its_steps_is_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer_b.zero_grad()
            b.loss(x, y, b.other).backward()
            clip_grad_norm_(b.other.parameters(), 1.0)
            b.optimizer_b.step()
            b.optimizer.zero_grad()
            b.other(b.model(x).repeat(1, 4)).mean().backward()
            clip_grad_norm_(b.model.parameters(), 1.0)
            b.optimizer.step()

    b = Bench(dtype=None)
    b.scaler = None
    assert ids(train, b, two=True) == []


def test_a_scale_that_is_only_logged_is_not_in_the_limit():
    def train(b):
        for loss in b.losses:
            b.optimizer.zero_grad()
            b.scaler.scale(loss).backward()
            print(b.scaler.get_scale())
            clip_grad_norm_(b.optimizer.param_groups[0]["params"], 10.0)
            b.scaler.step(b.optimizer)
            b.scaler.update()

    assert ids(train) == ["clip-before-unscale"]
