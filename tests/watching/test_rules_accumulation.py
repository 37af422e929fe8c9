"""The rules about micro-batches: what is divided, what is left over, and right loops that look wrong."""

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.watching.bench import Bench, ids, report


def accumulate(
    b: Bench, size: int, *, divide=True, every=None, steps_at_end=False, epochs=1, zero_first=False
):
    """A loop with windows of `size` micro-batches."""
    for _ in range(epochs):
        if zero_first:
            b.optimizer.zero_grad()
        for index, (x, y) in enumerate(b.batches, 1):
            loss = b.loss(x, y)
            b.scaler.scale(loss / size if divide else loss).backward()
            if index % size == 0 or (steps_at_end and index == len(b.batches)):
                b.scaler.step(b.optimizer)
                b.scaler.update()
                b.optimizer.zero_grad()


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_divided_windows_are_right(size, dtype):
    b = Bench(steps=12, dtype=dtype, enabled=dtype == torch.float16)
    assert ids(lambda b: accumulate(b, size, epochs=2), b) == []


def test_overflows_in_windows_are_right():
    assert ids(lambda b: accumulate(b, 2, epochs=3), Bench(steps=8, overflow=(0, 3))) == []


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_undivided_windows(size, enabled):
    b = Bench(steps=8, enabled=enabled, dtype=torch.float16 if enabled else None)
    found = report(lambda b: accumulate(b, size, divide=False), b)
    assert found.ids == ("not-divided",)
    assert f"of {size} micro-batches" in found.diagnoses[0].sentence


def test_a_loss_divided_before_something_is_added_is_right():
    def train(b):
        for index, (x, y) in enumerate(b.batches, 1):
            loss = b.loss(x, y) / 2 + 0.01 * b.model.weight.square().sum() / 2
            b.scaler.scale(loss).backward()
            if index % 2 == 0:
                b.scaler.step(b.optimizer)
                b.scaler.update()
                b.optimizer.zero_grad()

    assert ids(train) == []


def test_gradients_that_are_divided_by_hand_are_right():
    def train(b):
        for index, (x, y) in enumerate(b.batches, 1):
            b.scaler.scale(b.loss(x, y)).backward()
            if index % 2 == 0:
                b.scaler.unscale_(b.optimizer)
                for p in b.model.parameters():
                    p.grad /= 2
                b.scaler.step(b.optimizer)
                b.scaler.update()
                b.optimizer.zero_grad()

    assert ids(train) == []


def test_several_losses_of_one_forward_pass_in_a_loop_are_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            out = b.model(x)
            for column in (0, 1):
                mse_loss(out[:, column], y[:, column]).backward(retain_graph=column == 0)
            b.optimizer.step()

    b = Bench(dtype=None)
    b.scaler = None
    assert ids(train, b) == []


def test_a_short_last_window():
    found = report(lambda b: accumulate(b, 4, steps_at_end=True), Bench(steps=10))
    assert found.ids == ("last-window-short",)
    assert "2 micro-batches were left for step 3, and each loss was divided by 4: its gradient is 0.5" in (
        found.diagnoses[0].sentence
    )


def test_micro_batches_that_leak_into_the_next_epoch():
    found = report(lambda b: accumulate(b, 4, epochs=2), Bench(steps=6))
    assert found.ids == ("window-left-over",)
    assert "6 micro-batches came together in step 2" in found.diagnoses[0].sentence


def test_micro_batches_that_are_thrown_away():
    found = report(lambda b: accumulate(b, 4, epochs=2, zero_first=True), Bench(steps=7))
    assert found.ids == ("window-left-over",)
    assert "3 micro-batches" in found.diagnoses[0].sentence


def test_a_report_in_the_middle_of_a_window_is_no_alarm():
    assert ids(lambda b: accumulate(b, 4), Bench(steps=6)) == []


def test_a_short_last_batch_is_let_pass():
    b = Bench(steps=8)
    x, y = b.batches[-1]
    b.batches[-1] = x[:3], y[:3]
    assert ids(lambda b: accumulate(b, 4), b) == []


def test_unequal_micro_batches_in_every_window():
    b = Bench(steps=8)
    b.batches = [(x[:2], y[:2]) if index % 2 else (x, y) for index, (x, y) in enumerate(b.batches)]
    assert ids(lambda b: accumulate(b, 2), b) == ["unequal-micro-batches"]


def test_a_micro_batch_that_is_left_out_before_its_backward_pass_is_right():
    def train(b):
        for index, (x, y) in enumerate(b.batches, 1):
            loss = b.loss(x, y) / 4
            if index != 6:
                b.scaler.scale(loss).backward()
            if index % 4 == 0:
                b.scaler.step(b.optimizer)
                b.scaler.update()
                b.optimizer.zero_grad()

    assert ids(train, Bench(steps=12)) == []


def test_update_after_each_micro_batch_below_the_step():
    def train(b):
        for index, (x, y) in enumerate(b.batches, 1):
            b.scaler.scale(b.loss(x, y)).backward()
            if index % 2 == 0:
                b.scaler.step(b.optimizer)
                b.optimizer.zero_grad()
            b.scaler.update()

    assert ids(train) == ["update-each-micro-batch"]


def test_unscale_for_each_micro_batch_without_a_divisor():
    def train(b):
        for index, (x, y) in enumerate(b.batches, 1):
            b.scaler.scale(b.loss(x, y)).backward()
            b.scaler.unscale_(b.optimizer)
            if index % 2:
                continue
            b.scaler.step(b.optimizer)
            b.scaler.update()
            b.optimizer.zero_grad()

    # A `continue` below an unscale_ reads as a step that is given up: the loop never got far enough to tell.
    assert ids(train) == ["continue-before-update"]


def test_an_adversarial_example_made_with_backward_passes_is_right():
    def train(b):
        for x, y in b.batches:
            x = x.clone().requires_grad_()
            for _ in range(3):
                b.optimizer.zero_grad()
                b.loss(x, y).backward()
            b.optimizer.zero_grad()
            b.loss(x.detach() + 0.1 * x.grad.sign(), y).backward()
            b.optimizer.step()

    b = Bench(dtype=None)
    b.scaler = None
    assert ids(train, b) == []


def test_halves_of_a_loss_with_one_backward_pass_are_right():
    def train(b):
        for x, y in b.batches:
            b.optimizer.zero_grad()
            b.scaler.scale(b.loss(x, y) / 2).backward()
            b.scaler.step(b.optimizer)
            b.scaler.update()

    assert ids(train) == []
