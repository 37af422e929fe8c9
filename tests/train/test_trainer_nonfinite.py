"""A loss that is NaN or infinite: raise with a diagnosis, skip, stop. The weights are as they were before the step."""

import math

import pytest
import torch
from torch import nn

from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.train.training.errors import NonFiniteLoss
from tests.train.small_runs import make_loader, make_model, make_trainer, same_bits, weights

PRECISIONS = ("fp32", "fp16", "bf16")


def with_a_nan(place=2):
    """Batches, one of which has a NaN in its inputs."""
    batches = [[each.clone() for each in batch] for batch in make_loader()]
    batches[place][0][1, 2] = math.nan
    return batches


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_raise(precision, accumulate):
    batches, model, other = with_a_nan(), make_model(), make_model()
    settings = {"precision": precision, "accumulate": accumulate, "clip_norm": 1.0}
    trainer, reached = (
        make_trainer(model, adam(model), **settings),
        make_trainer(other, adam(other), **settings),
    )
    if accumulate == 1:
        reached.fit(batches[:2])
    with pytest.raises(NonFiniteLoss, match="the optimizer has not stepped") as caught:
        trainer.fit(batches)
    assert same_bits(weights(model), weights(reached.model))
    assert trainer.step == len(trainer.history.steps) == (2 if accumulate == 1 else 0)
    error = caught.value
    assert math.isnan(error.loss)
    assert (error.step, error.epoch) == (trainer.step, 0)
    assert error.batch[0].isnan().any()
    assert error.report.cause
    assert str(error.report) in str(error)
    assert ("micro-batch 3 of 3" in str(error)) == (accumulate == 3)
    assert all(each.grad is None for each in model.parameters())


def test_raise_then_fit_tries_the_batch_again():
    trainer, batches = make_trainer(), with_a_nan()
    with pytest.raises(NonFiniteLoss):
        trainer.fit(batches)
    mended = [
        [each.nan_to_num(nan=0.0) if each.is_floating_point() else each for each in one] for one in batches
    ]
    trainer.fit(mended)
    never_bad = make_trainer()
    never_bad.fit(mended)
    assert same_bits(weights(trainer.model), weights(never_bad.model))
    assert trainer.history == never_bad.history


@pytest.mark.parametrize("precision", PRECISIONS)
def test_skip(precision):
    batches = with_a_nan()
    trainer = make_trainer(precision=precision, on_nonfinite="skip")
    history = trainer.fit(batches)
    without = make_trainer(precision=precision)
    without.fit(batches[:2] + batches[3:])
    assert same_bits(weights(trainer.model), weights(without.model))
    assert [each.skipped for each in history.steps] == ["", "", "loss", "", "", ""]
    assert history.epochs[0].train_loss == pytest.approx(without.history.epochs[0].train_loss)
    assert trainer.scaler.get_scale() == without.scaler.get_scale()


def test_skip_does_not_go_on_with_what_is_spoilt():
    """A NaN in the input spoils the running mean of BatchNorm for ever: to skip the step would hide that."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    trainer = make_trainer(model, on_nonfinite="skip")
    with pytest.raises(NonFiniteLoss, match=r"the buffer '0\.running_mean' is not finite: an earlier batch"):
        trainer.fit(with_a_nan())


def test_stop():
    batches = with_a_nan()
    trainer = make_trainer(on_nonfinite="stop")
    history = trainer.fit(batches, epochs=3)
    assert trainer.stopped == "the loss of step 2, epoch 0, is nan"
    assert [each.skipped for each in history.steps] == ["", "", "loss"]
    assert history.epochs == []
    reached = make_trainer()
    reached.fit(batches[:2])
    assert same_bits(weights(trainer.model), weights(reached.model))


def test_what_a_scaler_cures_is_no_such_case():
    trainer = make_trainer(precision="fp16", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**26))
    history = trainer.fit(make_loader(), epochs=4)
    assert history.steps[0].skipped == "overflow"
    assert history.steps[-1].skipped == ""
    assert trainer.stopped is None


class SqrtAtZero(nn.Linear):
    """The loss is finite, and its gradient is not: the derivative of the square root at 0."""

    def forward(self, inputs):
        return super().forward(inputs) + (self.weight * 0).square().sum().sqrt()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_that_are_not_finite_where_no_scaler_looks(precision):
    model = SqrtAtZero(6, 3)
    before = weights(model)
    trainer = make_trainer(model, precision=precision, clip_norm=math.inf)
    with pytest.raises(NonFiniteLoss, match=r"the gradient norm of step 0, epoch 0, is nan \(the loss is "):
        trainer.fit(make_loader())
    assert same_bits(before, weights(model))


@pytest.mark.parametrize("policy", ["raise", "skip", "stop"])
def test_a_scale_that_has_sunk_to_nothing(policy):
    model = SqrtAtZero(6, 3)
    before = weights(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-23)
    trainer = make_trainer(model, precision="fp16", scaler=scaler, on_nonfinite=policy)
    said = "the loss scale has sunk to 2.98023e-08 at step 1, and gradients are still not finite"
    if policy == "stop":
        trainer.fit(make_loader())
        assert trainer.stopped == said
        assert trainer.history.skipped == [True, True]
    else:
        with pytest.raises(NonFiniteLoss, match=said) as caught:
            trainer.fit(make_loader())
        assert caught.value.report.cause != "none"
    assert same_bits(before, weights(model))


def test_the_diagnosis_of_an_overflow_in_the_forward_pass():
    model = make_model()
    with torch.no_grad():
        model[0].weight.fill_(300.0)
    batches = [(torch.full((8, 6), 100.0), torch.zeros(8, dtype=torch.int64))]
    trainer = make_trainer(model, precision="fp16")
    with cuda_autocast(), pytest.raises(NonFiniteLoss) as caught:
        trainer.fit(batches)
    assert (caught.value.report.cause, caught.value.report.cures) == ("forward-overflow", False)
    assert caught.value.report.op == "linear"


def test_a_loss_of_minus_and_plus_infinity():
    """Two micro-batches whose losses cancel to NaN."""
    calls = iter([math.inf, -math.inf])

    def loss_fn(outputs, target):
        return outputs.mean() * 0 + next(calls, 0.0)

    trainer = make_trainer(loss_fn=loss_fn, accumulate=2, on_nonfinite="stop")
    trainer.fit(make_loader())
    assert math.isnan(trainer.history.steps[0].loss)
