"""A Trainer does what a loop written by hand does: the same weights in every bit, in each precision."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR

from tests.train.small_runs import INPUTS, TARGETS, make_loader, make_model, make_trainer, same_bits, weights

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}


def by_hand(model, optimizer, scheduler, scaler, dtype, accumulate, clip_norm, epochs):
    """Train as one writes it down; return losses, scales and learning rates of the steps."""
    loss_fn, seen = nn.CrossEntropyLoss(), []
    for _ in range(epochs):
        batches = iter(make_loader())
        while window := list(itertools.islice(batches, accumulate)):
            samples = sum(len(target) for _, target in window)
            optimizer.zero_grad()
            total = 0.0
            for inputs, target in window:
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = loss_fn(model(inputs), target)
                total += loss.item() * len(target)
                scaler.scale(loss * (len(target) / samples)).backward()
            if clip_norm is not None:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), clip_norm)
            scale = scaler.get_scale()
            seen.append((total / samples, scale, optimizer.param_groups[0]["lr"]))
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale:
                scheduler.step()
    return seen


def parts(precision, init_scale):
    model = make_model(dropout=0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=init_scale, growth_interval=3, enabled=precision == "fp16"
    )
    return model, optimizer, LinearLR(optimizer, total_iters=20), scaler


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("precision", DTYPES)
def test_the_same_bits(precision, accumulate, clip_norm):
    # A scale of 2^24 overflows in FP16: the first steps are skipped, and the scheduler must wait.
    model, optimizer, scheduler, scaler = parts(precision, 2.0**24)
    torch.manual_seed(1)
    seen = by_hand(model, optimizer, scheduler, scaler, DTYPES[precision], accumulate, clip_norm, epochs=3)

    again, optimizer, scheduler, scaler = parts(precision, 2.0**24)
    given = scaler if precision == "fp16" else None
    trainer = make_trainer(
        again,
        optimizer,
        precision=precision,
        scheduler=scheduler,
        scheduler_every="step",
        scaler=given,
        accumulate=accumulate,
        clip_norm=clip_norm,
    )
    torch.manual_seed(1)
    history = trainer.fit(make_loader(), epochs=3)
    assert same_bits(weights(model), weights(again))
    assert [(each.loss, each.scale, each.lr) for each in history.steps] == [
        (pytest.approx(loss, rel=1e-12), scale, lr) for loss, scale, lr in seen
    ]
    skipped = sum(history.skipped)
    assert (skipped > 0) == (precision == "fp16")
    assert scheduler.last_epoch == len(seen) - skipped


def test_a_ragged_window_is_the_full_batch():
    """Windows of 4 micro-batches, of 4 and at the end of 3 samples: as one batch of 23, in FP64 to rounding."""
    small, full = make_model().double(), make_model().double()
    batches = [(x.double(), y) for x, y in make_loader()]
    make_trainer(small, accumulate=6).fit(batches)
    make_trainer(full).fit([(INPUTS.double(), TARGETS)])
    for one, other in zip(small.parameters(), full.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-15)


def test_dividing_by_the_number_of_micro_batches_would_be_seen():
    """The test above can fail: the plain mean of the micro-batches' means is another gradient."""
    model, full = make_model().double(), make_model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(x.double(), y) for x, y in make_loader()]
    for inputs, target in batches:
        (nn.CrossEntropyLoss()(model(inputs), target) / len(batches)).backward()
    optimizer.step()
    make_trainer(full).fit([(INPUTS.double(), TARGETS)])
    assert not torch.allclose(model[0].weight, full[0].weight, rtol=1e-4)


def test_the_loss_is_the_mean_over_all_samples():
    model = make_model()
    loss = nn.CrossEntropyLoss()(model(INPUTS), TARGETS).item()
    history = make_trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), accumulate=4).fit(
        make_loader()
    )
    assert history.epochs[0].train_loss == pytest.approx(loss, rel=1e-6)
    assert [each.samples for each in history.steps] == [16, 7]


def test_clip_norm_inf_measures_and_changes_nothing():
    clipped, plain = make_trainer(clip_norm=float("inf")), make_trainer()
    norms = clipped.fit(make_loader()).grad_norms
    assert plain.fit(make_loader()).grad_norms == [None] * 6
    assert all(norm > 0 for norm in norms)
    assert same_bits(weights(clipped.model), weights(plain.model))


def test_train_step_is_the_step_of_fit():
    fitted, stepped = make_trainer(accumulate=4), make_trainer(accumulate=4)
    fitted.fit(make_loader())
    batches = list(make_loader())
    records = [stepped.train_step(batches[:4]), stepped.train_step(batches[4:])]
    assert same_bits(weights(fitted.model), weights(stepped.model))
    assert records == fitted.history.steps == stepped.history.steps
