"""When schedulers are stepped: before the optimizer, too often, never, and for which optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from amp_lab.watching.recording.events import Backward, Event, Raised, Scheduled, Stepped, Updated
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.counting.schedules import counting, rate
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import FEW, asked, by_line, in_nearly_all, in_steps, steps_of, was_skipped
from amp_lab.watching.words import counted

_ENOUGH: Final = 10  # real steps, after which a schedule that is made for single steps should have moved


@rule("scheduler-before-step", Severity.WRONG, title="the scheduler steps before the optimizer")
def scheduler_before_step(run: Run) -> Iterator[Finding]:
    """The scheduler is stepped first, then the optimizer.

    The first learning rate of the schedule is never used, and all others come one step too early. Nor can the
    scheduler know whether the scaler will skip this step.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scheduler.step()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    """
    for line in by_line(counting(run)):
        early = [event for event in line if _precedes_its_step(run, event)]
        in_middle = in_nearly_all(steps_of(early), list(asked(run, line[0].optimizer)))
        if in_middle and not _several_a_step(line):
            why = "each time before the optimizer stepped"
        elif early and early[0] is line[0] and _goes_on(run, line) and not _several_a_step(line):
            why = "before the optimizer's first step"
        else:
            continue
        first = early[0]
        steps = [e for e in run.of(Stepped) if e.step in set(steps_of(early)) and e.optimizer in _its(first)]
        yield Finding(
            f"{first.kind} was stepped in {in_steps(steps_of(early))}, {why}: the learning rate was "
            f"{rate(first.after)} already, and {rate(first.before)} was never used.",
            tuple(sorted([*early, *steps], key=lambda event: event.number)),
            fix=_move_after(first, steps),
        )


def _its(event: Scheduled) -> tuple[int | None, ...]:
    return (event.optimizer, 0) if event.optimizer is None else (event.optimizer,)


def _move_after(first: Scheduled, steps: Sequence[Stepped]) -> Fix:
    say = "Step the scheduler after scaler.step(optimizer) and scaler.update()."
    if not steps:
        return Fix(first, say=say)
    return Fix(first, ("{line}",), say=say, also=(Fix(steps[0], insert=("{moved}",), place="after"),))


def _precedes_its_step(run: Run, event: Scheduled) -> bool:
    """Whether the optimizer's step comes later in the same step of the loop, and none came before."""
    own = asked(run, event.optimizer).get(event.step, ())
    return bool(own) and all(step.number > event.number for step in own)


def _goes_on(run: Run, line: Sequence[Scheduled]) -> bool:
    """Whether the line is called again after the optimizer's first step, before another step: a loop's first line."""
    first = min((e.number for events in asked(run, line[0].optimizer).values() for e in events), default=0)
    return 0 < first < line[-1].number and sum(event.number < first for event in line) == 1


def _several_a_step(line: Sequence[Scheduled]) -> bool:
    """Whether the line is usually called more than once in a step."""
    return len(line) >= 2 * len(steps_of(line)) - 1 and len(line) > len(steps_of(line))


@rule(
    "scheduler-twice", Severity.WRONG, title="the scheduler steps twice", explains=("scheduler-before-step",)
)
def scheduler_twice(run: Run) -> Iterator[Finding]:
    """One scheduler is stepped in two places of the loop, in each step.

    The learning rate goes through its schedule twice as fast as planned. Often one of the two calls is left over from
    a version that stepped once an epoch, or is hidden in a helper.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scheduler.step()
        scaler.update()
        scheduler.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    """
    events = counting(run)
    for scheduler in sorted({event.scheduler for event in events if event.scheduler is not None}):
        own = [event for event in events if event.scheduler == scheduler]
        steps = list(asked(run, own[0].optimizer))
        lines = [line for line in by_line(own) if in_nearly_all(steps_of(line), steps)]
        if len(lines) < 2:
            continue
        both = sorted([event for line in lines for event in line], key=lambda event: event.number)
        first = both[0]
        yield Finding(
            f"{first.kind} was stepped in {len(lines)} places in each of {counted(len(steps), 'step')}: the learning "
            f"rate goes {len(lines)} times as fast as planned.",
            tuple(both),
            {"calls": len(both), "steps": len(steps)},
            Fix(lines[0][0], ("{line}",), say="Keep one of the calls, the one after update()."),
        )


@rule(
    "scheduler-each-microbatch",
    Severity.RISK,
    title="the scheduler steps with each part of a batch",
    explains=("scheduler-before-step", "scheduler-on-skip"),
)
def scheduler_each_microbatch(run: Run) -> Iterator[Finding]:
    """While gradients are accumulated, the scheduler is stepped after each backward pass.

    The optimizer steps once for several micro-batches, the schedule goes on with each of them: the first rates are
    never used, and a schedule that was planned in steps ends too early.

    Wrong:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(part_x), part_y) / 4
            scaler.scale(loss).backward()
            scheduler.step()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(part_x), part_y) / 4
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    """
    for line in by_line(counting(run)):
        between = {step: _parts(run, line, step) for step in asked(run, line[0].optimizer)}
        several = [step for step, parts in between.items() if parts > 1]
        if not in_nearly_all(several, list(between)):
            continue
        most = max(between.values())
        yield Finding(
            f"{line[0].kind} was stepped up to {most} times for one step of the optimizer, once with each backward "
            "pass: the learning rate goes through its schedule faster than the optimizer steps.",
            tuple(event for event in line if event.step in set(several)),
            {"calls": len(line), "steps of the optimizer": len(between)},
            _behind_update(run, line[0]),
        )


def _behind_update(run: Run, call: Scheduled) -> Fix:
    say = "Step the scheduler once for each step of the optimizer, after update()."
    update = next((e for e in run.of(Updated) if e.step == call.step and not e.raised), None)
    if update is None:
        return Fix(call, say=say)
    return Fix(call, ("{line}",), say=say, also=(Fix(update, insert=("{moved}",), place="after"),))


def _parts(run: Run, line: Sequence[Scheduled], step: int) -> int:
    """Return how many of a step's calls were each made after a backward pass of its own."""
    calls = [event.number for event in line if event.step == step]
    passes = [event.number for event in run.of(Backward) if event.step == step and event.how == "backward"]
    return len({sum(each < call for each in passes) for call in calls} - {0})


@rule("scheduler-never-stepped", Severity.WRONG, title="the schedule is never followed")
def scheduler_never_stepped(run: Run) -> Iterator[Finding]:
    """A schedule that is made to move with each step was never stepped.

    OneCycleLR begins at a 25th of its largest learning rate, and stays there. (Most others may move once an epoch,
    which a watched part of a run need not reach: nothing is said about them.)

    Wrong:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=48)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=48)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    """
    if any(event.scheduler is not None for event in run.of(Scheduled)):
        return
    for number, facts in enumerate(run.optimizers):
        events = [event for each in asked(run, number).values() for event in each]
        taken = [event for event in events if event.rates and not was_skipped(event)]
        if not facts.one_cycle or len(taken) < _ENOUGH or len({event.rates for event in taken}) > 1:
            continue
        yield Finding(
            f"The OneCycleLR of {facts.kind} was never stepped in {counted(run.steps, 'step')}: the "
            "learning rate stayed "
            f"at {rate(taken[0].rates)}.",
            (taken[0], taken[-1]),
            fix=Fix(
                _last_call(run, taken[0]),
                insert=("{scheduler}.step()",),
                place="after",
                say="Call scheduler.step() after each step that was taken: OneCycleLR counts them.",
            ),
        )


def _last_call(run: Run, step: Stepped) -> Event:
    """Return the update that belongs to a step, or the step itself, without a scaler."""
    return next((event for event in run.of(Updated) if event.step == step.step), step)


@rule("scheduler-of-another-optimizer", Severity.WRONG, title="the scheduler belongs to another optimizer")
def scheduler_of_another_optimizer(run: Run) -> Iterator[Finding]:
    """The scheduler moves the learning rates of an optimizer that never steps.

    It happens when an optimizer is made again (for a model that was moved, wrapped or compiled) and the scheduler still
    holds the old one: its steps change numbers that nobody reads.

    Wrong:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

    Right:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    """
    taken = [e for events in asked(run).values() for e in events if e.rates]
    if len({event.rates for event in taken}) != 1:
        return
    for line in by_line(counting(run)):
        first, last = line[0], line[-1]
        moved = [event for event in line if event.before != event.after and event.number < taken[-1].number]
        if len(steps_of(line)) < FEW or not moved or taken[0].rates in [event.after for event in moved]:
            continue
        yield Finding(
            f"{first.kind} moved its learning rate from {rate(first.before)} to {rate(last.after)}, but that "
            f"of the optimizer that steps stayed at {rate(taken[0].rates)}: the scheduler was made for "
            "another optimizer.",
            (*line, taken[-1]),
            {"the scheduler's rate": last.after, "the optimizer's rate": taken[0].rates},
            Fix(first, say="Make the scheduler after the optimizer, and with the one that steps."),
        )


@rule(
    "schedule-too-short",
    Severity.WRONG,
    title="the schedule has fewer steps than the run",
    explains=("raised",),
)
def schedule_too_short(run: Run) -> Iterator[Finding]:
    """OneCycleLR was stepped more often than its total_steps, and raised.

    It counts calls, not epochs. With accumulation, plan the steps of the optimizer: batches divided by micro-batches.

    Wrong:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

    Right:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=len(batches))
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    """
    for event in run.of(Raised):
        calls = [each for each in run.of(Scheduled) if each.kind == "OneCycleLR"]
        if event.kind != "ValueError" or "total steps" not in event.message or not calls:
            continue
        yield Finding(
            f"OneCycleLR ended in step {event.step:,}, while the run went on: {event.message}",
            (*calls[-1:], event),
            fix=Fix(
                calls[-1], say="Give total_steps the number of times that scheduler.step() will be called."
            ),
        )
