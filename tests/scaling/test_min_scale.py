"""min_scale: a run that no scale can help stops, and says why; without it the scale sinks as PyTorch's does."""

import copy
import pickle

import pytest
import torch

from amp_lab.scaling import DynamicLossScaler, LossScaleTooSmall
from tests.scaling.loops import backward, iterate, named
from tests.scaling.optimizers import FusedSGD

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_it_stops_with_its_cause(kind):
    scaler, optimizer = DynamicLossScaler(4.0, min_scale=1.0), kind(named((3,), (2,)), lr=0.1)
    iterate(scaler, optimizer, 1.0, INF)
    iterate(scaler, optimizer, 1.0, 1.0)  # a clean step: the count begins again
    iterate(scaler, optimizer, NAN, 1.0)
    assert scaler.get_scale() == 1.0, "the floor itself is no reason to stop"
    with pytest.raises(LossScaleTooSmall) as caught:
        iterate(scaler, optimizer, NAN, INF)
    assert (
        "an overflow at loss scale 1 asks for 0.5, below min_scale=1. In the last 2 steps, all skipped, infinity or "
        "NaN was in the gradients of layer0.weight (2 times), layer1.weight (1 time)." in str(caught.value)
    )
    assert scaler.history.scales == [4.0, 2.0, 2.0, 1.0]
    assert scaler.history.stopped
    assert scaler.get_scale() == 1.0
    iterate(scaler, optimizer)  # whoever has repaired it can go on
    assert scaler.last.stepped
    assert not scaler.history.stopped


def test_the_floor_of_two_optimizers():
    scaler = DynamicLossScaler(1.0, min_scale=1.0)
    first, second = torch.optim.SGD(named((3,)), lr=0.1), torch.optim.SGD(named((1,), (2,)), lr=0.1)
    backward(scaler, first, 1.0)
    backward(scaler, second, 1.0, NAN)
    scaler.step(first)
    scaler.step(second)
    with pytest.raises(LossScaleTooSmall, match=r"In the last step, .* layer1\.weight \(1 time\)\."):
        scaler.update()
    assert scaler.last_for(first).stepped


def test_growth_and_backoff_above_the_floor():
    with_floor, without = (
        DynamicLossScaler(4.0, growth_interval=1, min_scale=0.3),
        DynamicLossScaler(4.0, 2.0, 0.5, 1),
    )
    optimizer = torch.optim.SGD(named((1,)), lr=0.1)
    for number in (INF, INF, 1.0, INF, INF, 1.0, INF):
        iterate(with_floor, optimizer, number)
        iterate(without, optimizer, number)
    assert with_floor.history.scales == without.history.scales
    assert not with_floor.history.stopped


def test_what_was_not_asked_in_time_is_said_so():
    scaler, optimizer = DynamicLossScaler(1.0, min_scale=1.0), FusedSGD(named((3,)), lr=0.1)
    backward(scaler, optimizer, NAN)
    scaler.step(optimizer)
    optimizer.zero_grad()
    with pytest.raises(
        LossScaleTooSmall, match="It is not known whose gradients were infinite or NaN in the last step"
    ):
        scaler.update()


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_a_scale_set_by_hand_after_a_clean_step_begins_the_count_again(kind):
    scaler, optimizer = DynamicLossScaler(4.0, min_scale=1.0), kind(named((3,)), lr=0.1)
    iterate(scaler, optimizer, NAN)
    iterate(scaler, optimizer, NAN)
    backward(scaler, optimizer)
    scaler.step(optimizer)
    scaler.update(4.0)
    iterate(scaler, optimizer, NAN)
    backward(scaler, optimizer, NAN)
    scaler.step(optimizer)
    scaler.update(1.0)
    with pytest.raises(LossScaleTooSmall, match=r"In the last 3 steps, all skipped, .* \(3 times\)"):
        iterate(scaler, optimizer, NAN)


@pytest.mark.parametrize("new", [0.999, torch.tensor(0.5)])
def test_a_scale_set_by_hand_is_not_below_the_floor(new):
    scaler, optimizer = DynamicLossScaler(4.0, min_scale=1.0), torch.optim.SGD(named((3,)), lr=0.1)
    backward(scaler, optimizer)
    scaler.step(optimizer)
    with pytest.raises(ValueError, match=r"new_scale=0\.\d+ is below min_scale=1\.0: the scale may not"):
        scaler.update(new)
    assert scaler.get_scale() == 4.0
    scaler.update(1)
    assert scaler.get_scale() == 1.0
    scaler.load_state_dict(scaler.state_dict())


def test_the_error_can_be_sent_and_copied():
    """A process that raises it hands it to another by pickle."""
    scaler, optimizer = DynamicLossScaler(1.0, min_scale=1.0), torch.optim.SGD(named((3,)), lr=0.1)
    with pytest.raises(LossScaleTooSmall) as caught:
        iterate(scaler, optimizer, NAN)
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(twin) is LossScaleTooSmall
        assert str(twin) == str(caught.value) != ""


def test_a_scale_set_by_hand_is_no_reason_to_stop():
    scaler, optimizer = DynamicLossScaler(1.0, min_scale=1.0), torch.optim.SGD(named((3,)), lr=0.1)
    backward(scaler, optimizer, NAN)
    scaler.step(optimizer)
    scaler.update(64.0)
    assert scaler.get_scale() == 64.0


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_without_it_the_scale_sinks_to_zero(kind):
    ours, theirs = DynamicLossScaler(), torch.amp.GradScaler("cpu")
    optimizer = kind(named((1,)), lr=0.1)
    for _ in range(170):
        for scaler in (ours, theirs):
            iterate(scaler, optimizer, NAN)
        if kind is torch.optim.SGD:
            assert ours.get_scale() == theirs.get_scale()
    assert ours.get_scale() == theirs.get_scale() == 0.0
    again = DynamicLossScaler()
    again.load_state_dict(theirs.state_dict())
    assert again.get_scale() == 0.0
    iterate(again, optimizer, 1.0)  # 1/0 is infinite, as in PyTorch
