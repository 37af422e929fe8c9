"""Schedulers of each kind, stepped rightly and wrongly, in real loops and in runs made by hand."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.optim import lr_scheduler as kinds

from amp_lab.watching.recording.events import Averaged, Scheduled
from tests.watching.tapes import Tape, found
from tests.watching.training import Training, report_of, said_by

FAMILIES = ("schedules", "schedulers")

Loop = Callable[[Training], object]


@pytest.fixture(autouse=True)
def _pytorch_may_warn() -> Iterator[None]:
    """PyTorch warns of some of these loops, which is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def guarded(scheduler_of: Callable[[torch.optim.Optimizer], kinds.LRScheduler]) -> Loop:
    def loop(training: Training) -> None:
        scheduler = scheduler_of(training.optimizer)
        for taken in training.steps():
            if taken:
                scheduler.step()

    return loop


def unguarded(scheduler_of: Callable[[torch.optim.Optimizer], kinds.LRScheduler]) -> Loop:
    def loop(training: Training) -> None:
        scheduler = scheduler_of(training.optimizer)
        for _ in training.steps():
            scheduler.step()

    return loop


def sequential(optimizer: torch.optim.Optimizer) -> kinds.LRScheduler:
    parts = [kinds.LinearLR(optimizer, 0.1, total_iters=3), kinds.ExponentialLR(optimizer, 0.9)]
    return kinds.SequentialLR(optimizer, parts, milestones=[3])


def chained(optimizer: torch.optim.Optimizer) -> kinds.LRScheduler:
    return kinds.ChainedScheduler([kinds.LinearLR(optimizer, 0.1), kinds.ExponentialLR(optimizer, 0.9)])


SCHEDULERS = {
    "StepLR": lambda optimizer: kinds.StepLR(optimizer, 2),
    "OneCycleLR": lambda optimizer: kinds.OneCycleLR(optimizer, 0.1, total_steps=20),
    "LambdaLR": lambda optimizer: kinds.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "CosineAnnealingLR": lambda optimizer: kinds.CosineAnnealingLR(optimizer, 20),
    "CosineAnnealingWarmRestarts": lambda optimizer: kinds.CosineAnnealingWarmRestarts(optimizer, 4),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_guarded_scheduler_gets_nothing(name: str) -> None:
    report = report_of(Training(12, (1, 5, 6)), guarded(SCHEDULERS[name]))
    assert said_by(FAMILIES, report) == []


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_unguarded_scheduler_is_told_where_a_step_was_skipped(name: str) -> None:
    report = report_of(Training(12, (4,)), unguarded(SCHEDULERS[name]))
    assert said_by(FAMILIES, report) == ["scheduler-on-skip"]
    (found_one,) = [each for each in report.all if each.id == "scheduler-on-skip"]
    assert f"{name} was stepped in step 4, though" in found_one.sentence


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_unguarded_scheduler_gets_nothing_while_no_step_is_skipped(name: str) -> None:
    assert said_by(FAMILIES, report_of(Training(12), unguarded(SCHEDULERS[name]))) == []


def test_a_fused_optimizer_with_a_guarded_scheduler_gets_nothing() -> None:
    training = Training(10, (1, 4), kind=torch.optim.AdamW, fused=True)
    assert said_by(FAMILIES, report_of(training, guarded(SCHEDULERS["StepLR"]))) == []


def test_a_fused_optimizer_with_an_unguarded_one_is_told_that_it_ran() -> None:
    training = Training(10, (4,), kind=torch.optim.AdamW, fused=True)
    report = report_of(training, unguarded(SCHEDULERS["StepLR"]))
    (each,) = report.diagnoses
    assert each.id == "scheduler-on-skip"
    assert "a fused optimizer" in each.sentence


def test_once_an_epoch_may_follow_a_skipped_step() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.StepLR(training.optimizer, 1)
        for number, _ in enumerate(training.steps(), start=1):
            if number % 4 == 0:
                scheduler.step()

    assert said_by(FAMILIES, report_of(Training(16, (8,)), loop)) == []


def test_a_plateau_with_a_metric_may_be_told_in_each_step() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.ReduceLROnPlateau(training.optimizer, patience=0)
        for number, _ in enumerate(training.steps()):
            scheduler.step(1.0 + number)

    assert said_by(FAMILIES, report_of(Training(10, (3,)), loop)) == []


def test_a_position_in_the_schedule_may_be_given_in_each_step() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.CosineAnnealingWarmRestarts(training.optimizer, 2)
        for number, _ in enumerate(training.steps()):
            scheduler.step(number / 5)

    assert said_by(FAMILIES, report_of(Training(10, (3,)), loop)) == []


def test_a_position_may_be_given_at_the_beginning_of_the_loop() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.CosineAnnealingWarmRestarts(training.optimizer, 2)
        for number, (x, y) in enumerate(training.data):
            scheduler.step(number / 5)
            training.backward(x, y)
            training.step()

    assert said_by(FAMILIES, report_of(Training(10, (3,)), loop)) == []


def test_going_forward_to_where_the_run_was_is_right() -> None:
    """`for _ in range(start): scheduler.step()` before the first step, then once an epoch."""

    def loop(training: Training) -> None:
        scheduler = kinds.StepLR(training.optimizer, 2)

        def go_on() -> None:
            scheduler.step()

        for _ in range(5):
            go_on()
        for number, _ in enumerate(training.steps(), start=1):
            if number % 4 == 0:
                go_on()

    assert said_by(FAMILIES, report_of(Training(12), loop)) == []


def test_one_step_per_epoch_and_one_per_batch_are_two_schedules() -> None:
    def loop(training: Training) -> None:
        warm_up = kinds.LinearLR(training.optimizer, 0.1, total_iters=4)
        decay = kinds.StepLR(training.optimizer, 1)
        for number, _ in enumerate(training.steps(), start=1):
            warm_up.step()
            if number % 4 == 0:
                decay.step()

    assert said_by(FAMILIES, report_of(Training(12), loop)) == []


def test_one_step_for_each_process_is_no_second_place() -> None:
    """accelerate steps a scheduler once for each process, in a loop of its own."""

    def loop(training: Training) -> None:
        scheduler = kinds.StepLR(training.optimizer, 8)
        for _ in training.steps():
            for _ in range(4):
                scheduler.step()

    assert said_by(FAMILIES, report_of(Training(8), loop)) == []


def test_a_scheduler_at_the_beginning_of_the_loop() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.StepLR(training.optimizer, 2)
        for x, y in training.data:
            scheduler.step()
            training.backward(x, y)
            training.step()

    report = report_of(Training(8), loop)
    assert said_by(FAMILIES, report) == ["scheduler-before-step"]
    assert "stepped in step 1, before the optimizer's first step" in report.diagnoses[0].sentence


def test_a_rate_written_by_hand_from_the_steps_taken_gets_nothing() -> None:
    def loop(training: Training) -> None:
        taken = 0
        for x, y in training.data:
            training.optimizer.param_groups[0]["lr"] = 0.1 / (1 + taken)
            training.backward(x, y)
            taken += training.step()

    assert said_by(FAMILIES, report_of(Training(10, (1, 4)), loop)) == []


def test_a_rate_written_by_hand_after_each_batch_is_told() -> None:
    def loop(training: Training) -> None:
        for number, _ in enumerate(training.steps()):
            training.optimizer.param_groups[0]["lr"] = 0.1 / (2 + number)

    report = report_of(Training(10, (4,)), loop)
    assert said_by(FAMILIES, report) == ["rate-on-skip"]
    assert "in step 4, which was skipped, to 0.02 in step 5" in report.diagnoses[0].sentence


def test_a_rate_written_once_an_epoch_may_follow_a_skipped_step() -> None:
    def loop(training: Training) -> None:
        for number, _ in enumerate(training.steps(), start=1):
            if number % 4 == 0:
                training.optimizer.param_groups[0]["lr"] *= 0.5

    assert said_by(FAMILIES, report_of(Training(16, (4, 8)), loop)) == []


def test_a_guard_that_reads_growth_as_a_skip() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.StepLR(training.optimizer, 2)
        for x, y in training.data:
            training.backward(x, y)
            training.scaler.step(training.optimizer)
            before = training.scaler.get_scale()
            training.scaler.update()
            if training.scaler.get_scale() == before:
                scheduler.step()

    report = report_of(Training(12, (3,), scale=64.0, growth_interval=4), loop)
    assert said_by(FAMILIES, report) == ["growth-read-as-skip"]


def test_an_average_misses_a_step_in_the_same_way() -> None:
    tape = Tape(growth_interval=4)
    for number in range(1, 9):
        tape.step()
        if number % 4:
            tape.note(Averaged, line=7, average=1, dtype=torch.float32, **{"kind": "AveragedModel"})
    (finding,) = found("growth-read-as-skip", tape.run())
    assert "In steps 4 and 8" in finding.sentence
    assert "the average was not updated" in finding.sentence
    assert "from 1,024 to 2,048" in finding.sentence


def test_a_schedule_that_ended_by_chance_when_the_scale_grew_is_not_taken_for_it() -> None:
    """Two growths, and only one of the two steps was missed."""
    tape = Tape(growth_interval=4)
    for number in range(1, 9):
        tape.step()
        if number != 4:
            rates = {"before": (0.1,), "after": (0.1,)}
            tape.note(Scheduled, line=7, scheduler=0, optimizer=0, **rates, **{"kind": "StepLR"})
    assert found("growth-read-as-skip", tape.run()) == []


def test_the_schedulers_of_a_gan_belong_to_their_optimizers() -> None:
    """The generator's step was skipped, the discriminator's was not, nor was its scheduler left out."""
    tape = Tape()
    tape.optimizers *= 2
    for number in range(1, 9):
        tape.step(skip=number == 3)  # optimizer 0
        for optimizer in (0, 1):
            if optimizer == 0 and number == 3:
                continue
            rates = {"before": (0.1,), "after": (0.05,)}
            place = {"line": 20 + optimizer, "scheduler": optimizer, "optimizer": optimizer}
            tape.note(Scheduled, **place, **rates, **{"kind": "StepLR"})
    assert found("scheduler-on-skip", tape.run()) == []


def test_parts_of_a_batch_that_are_accumulated() -> None:
    def loop(training: Training) -> None:
        scheduler = kinds.StepLR(training.optimizer, 2)
        for number, (x, y) in enumerate(training.data, start=1):
            with torch.autocast("cpu", torch.float16):
                loss = torch.nn.functional.mse_loss(training.model(x), y) / 2
            training.scaler.scale(loss).backward()
            if number % 2 == 0:
                training.step()
                training.optimizer.zero_grad()
            scheduler.step()

    report = report_of(Training(12), loop)
    assert "scheduler-each-microbatch" in said_by(FAMILIES, report)
    assert set(said_by(FAMILIES, report)) <= {"scheduler-each-microbatch", "scheduler-before-step"}
    assert "scheduler-before-step" not in report.ids


def _long(tape: Tape, calls_for_each_step: bool) -> list:
    """A fused optimizer on a GPU: the steps that were skipped went as all others did, and were not kept."""
    for number in range(1, 1001):
        tape.step(skip=number in (400, 500))
        if calls_for_each_step or number not in (400, 500):
            rates = {"before": (0.1,), "after": (0.1,)}
            tape.note(Scheduled, line=7, scheduler=0, optimizer=0, **rates, **{"kind": "StepLR"})
    run = tape.run()
    kept = frozenset({*range(1, 17), *range(969, 1001)})
    counts = {"Scheduled": sum(isinstance(event, Scheduled) for event in run.events)}
    events = [event for event in run.events if event.step in kept]
    return found("scheduler-on-skip", dataclasses.replace(run, events=events, kept_steps=kept, counts=counts))


def test_skipped_steps_that_were_not_kept_are_told_from_the_counts() -> None:
    (finding,) = _long(Tape(fused=True), calls_for_each_step=True)
    assert "in steps 400 and 500" in finding.sentence
    assert _long(Tape(fused=True), calls_for_each_step=False) == []


def test_the_report_begins_at_the_scheduler_and_tells_the_rate_of_the_first_step_taken() -> None:
    scheduler = lambda optimizer: kinds.LambdaLR(optimizer, lambda step: 1 + step)  # noqa: E731
    report = report_of(Training(8, (1, 2), scale=512.0), unguarded(scheduler))
    (each,) = [each for each in report.all if each.id == "scheduler-on-skip"]
    assert (
        "until the first step that was taken, step 3, the learning rate went from 0.01 to 0.03"
        in each.sentence
    )
    assert each.where is not None
    assert "scheduler.step" in each.where.text
