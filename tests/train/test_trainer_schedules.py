"""When a scheduler moves: with real steps, or with epochs; and the number that is one of the other kind."""

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from amp_lab.train.training.schedules import Schedule
from tests.train.small_runs import make_loader, make_model, make_trainer


def run(make, epochs, *, dev=None, **settings):
    """Return the learning rate of each step, of which there are 6 in an epoch."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = make_trainer(model, optimizer, scheduler=make(optimizer), **settings)
    trainer.fit(make_loader(), dev, epochs=epochs)
    return trainer, [round(lr / 1e-3, 6) for lr in trainer.history.lrs]


def test_with_each_step():
    _, lrs = run(lambda o: StepLR(o, 6, gamma=0.5), 2, scheduler_every="step")
    assert lrs == [1.0] * 6 + [0.5] * 6


def test_with_each_step_unless_told_otherwise():
    _, lrs = run(lambda o: ExponentialLR(o, 0.5), 1)
    assert lrs == [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]


def test_with_each_epoch():
    _, lrs = run(lambda o: StepLR(o, 1, gamma=0.5), 3, scheduler_every="epoch")
    assert lrs == [1.0] * 6 + [0.5] * 6 + [0.25] * 6


@pytest.mark.parametrize(
    "make",
    [
        lambda o: StepLR(o, 3),
        lambda o: CosineAnnealingLR(o, 3),
        lambda o: MultiStepLR(o, [1, 3]),
        lambda o: LinearLR(o, total_iters=3),
        lambda o: MultiStepLR(o, [2, 5]),  # 5 steps are less than an epoch
        lambda o: PolynomialLR(o, 7),  # it ends at 0, and would be there in the second epoch
        lambda o: ExponentialLR(o, 0.3),  # 0.3^18 of the learning rate would be left
        lambda o: StepLR(o, 4, 0.001),
        lambda o: ChainedScheduler([LinearLR(o, total_iters=2), ExponentialLR(o, 0.9)]),
        lambda o: SequentialLR(o, [LinearLR(o, total_iters=2), ExponentialLR(o, 0.9)], [2]),
    ],
)
def test_a_number_that_looks_like_epochs_is_asked_about(make):
    with pytest.raises(
        ValueError, match=r'are these epochs\? Say Trainer\(\.\.\., scheduler_every="epoch"\)'
    ):
        run(make, 3)
    for every in ("step", "epoch"):
        run(make, 3, scheduler_every=every)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: CosineAnnealingLR(o, 18),
        lambda o: OneCycleLR(o, 1e-3, total_steps=18),
        lambda o: LinearLR(o, total_iters=4),  # a warm-up within the first epoch
        lambda o: SequentialLR(o, [LinearLR(o, total_iters=2), CosineAnnealingLR(o, 16)], [2]),
        lambda o: StepLR(o, 4, 0.5),
        lambda o: ExponentialLR(o, 0.9),
        lambda o: LambdaLR(o, lambda step: 1 - step / 18),
    ],
)
def test_a_number_of_steps_is_not_asked_about(make):
    run(make, 3)


def test_plateau_moves_by_the_dev_loss():
    """The dev loss gets no better with a learning rate of 0.001: after the second epoch in which it does not, 0.1 ×."""
    trainer, lrs = run(
        lambda o: ReduceLROnPlateau(o, patience=0, threshold=10.0, threshold_mode="abs"), 3, dev=make_loader()
    )
    assert lrs == [1.0] * 12 + [0.1] * 6
    assert trainer.scheduler.best == trainer.history.epochs[0].dev_loss


def test_an_epoch_without_a_step_does_not_count():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=0.5)
    trainer, lrs = run(
        lambda o: StepLR(o, 1, gamma=0.5), 2, scheduler_every="epoch", precision="fp16", scaler=scaler
    )
    assert trainer.history.skipped == [True] * 12
    assert lrs == [1.0] * 12


def test_a_step_from_before_a_checkpoint_counts():
    """Even if the scaler skips all that are left of the epoch."""

    def make():
        optimizer = torch.optim.SGD(make_model().parameters(), lr=1.0)
        return optimizer, Schedule(StepLR(optimizer, 1, gamma=0.5), "epoch")

    optimizer, schedule = make()
    optimizer.step()
    schedule.stepped()
    resumed, again = make()
    again.load_state_dict(schedule.state_dict())
    resumed.step()  # PyTorch warns if none came before the scheduler's
    again.epoch_ended(None)
    assert resumed.param_groups[0]["lr"] == 0.5
    again.epoch_ended(None)  # one in which all steps were skipped
    assert resumed.param_groups[0]["lr"] == 0.5


def test_accumulation_counts_steps_and_not_batches():
    trainer, lrs = run(lambda o: OneCycleLR(o, 1e-3, total_steps=4), 2, accumulate=3)
    assert len(lrs) == trainer.scheduler.last_epoch == 4
    with pytest.raises(ValueError, match=r"has total_steps=3, and this run has 4 steps: .* total_steps=4"):
        run(lambda o: OneCycleLR(o, 1e-3, total_steps=3), 2, accumulate=3, scheduler_every="step")


def test_a_state_with_a_scheduler_into_a_trainer_without():
    trainer, _ = run(lambda o: ExponentialLR(o, 0.5), 1)
    state = trainer.state_dict()
    with pytest.raises(ValueError, match="the checkpoint has a scheduler and this Trainer has none"):
        make_trainer().load_state_dict(state)
