"""A loss that is NaN or infinite: raise with a diagnosis, skip, stop. The weights are as they were before the step."""

import math
import re

import pytest
import torch
from torch import nn

from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.trainer import NonFiniteLoss
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
    assert str(error).endswith('To go on without such batches: Trainer(..., on_nonfinite="skip").')
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
    with pytest.raises(
        NonFiniteLoss, match=r"The buffer '0\.running_mean' is not finite: the forward"
    ) as caught:
        trainer.fit(with_a_nan())
    assert (
        caught.value.report.cause == "nan-in-data"
    )  # it was this batch, in the forward pass that gave the loss
    assert "on_nonfinite" not in str(caught.value)


def test_stop():
    batches = with_a_nan()
    trainer = make_trainer(on_nonfinite="stop")
    history = trainer.fit(batches, epochs=3)
    assert trainer.stopped == "the loss of step 2, epoch 0, is nan"
    assert [each.skipped for each in history.steps] == ["", "", "loss"]
    assert history.epochs == []
    assert all(each.grad is None for each in trainer.model.parameters())
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


class SpoiltInStep2(nn.Linear):
    """One gradient that is not finite, of a finite loss."""

    calls = 0

    def forward(self, inputs):
        self.calls += 1
        bad = (self.weight * 0).square().sum().sqrt() if self.calls == 3 else 0.0
        return super().forward(inputs) + bad


def test_weights_that_a_gradient_has_spoilt_where_nobody_looked():
    trainer = make_trainer(SpoiltInStep2(6, 3))
    said = re.escape(
        "The weight 'weight' is not finite: step 2, or one before it, spoilt it: its loss was finite"
    )
    with pytest.raises(NonFiniteLoss, match=rf"the loss of step 3(.|\n)*{said}.*clip_norm=math\.inf"):
        trainer.fit(make_loader())
    assert math.isfinite(trainer.history.losses[2])


@pytest.mark.parametrize("policy", ["raise", "skip", "stop"])
def test_spoilt_weights_are_not_saved(tmp_path, policy):
    """A run that is resumed would go on from them."""
    checkpoints = Checkpoints(tmp_path, every=1)
    trainer = make_trainer(SpoiltInStep2(6, 3), checkpoints=checkpoints, on_nonfinite=policy)
    if policy == "stop":
        trainer.fit(make_loader())
        assert trainer.stopped.startswith("The weight 'weight' is not finite: step 2")
    else:
        with pytest.raises(
            NonFiniteLoss, match=r"(?s)'weight' is not finite: step 2.*No checkpoint was saved"
        ):
            trainer.fit(make_loader())
    assert [path.name for path in checkpoints.paths] == ["step-0000000001.pt", "step-0000000002.pt"]


def test_the_infinities_of_a_mask_are_no_harm():
    model = make_model()
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    trainer = make_trainer(model, on_nonfinite="skip")
    assert sum(trainer.fit(with_a_nan()).skipped) == 1


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
    assert "on CUDA's lower-precision list" in caught.value.report.first.op.reason


def test_a_loss_of_minus_and_plus_infinity():
    """Two micro-batches whose losses cancel to NaN."""
    calls = iter([math.inf, -math.inf])

    def loss_fn(outputs, target):
        return outputs.mean() * 0 + next(calls, 0.0)

    trainer = make_trainer(loss_fn=loss_fn, accumulate=2, on_nonfinite="stop")
    trainer.fit(make_loader())
    assert math.isnan(trainer.history.steps[0].loss)
