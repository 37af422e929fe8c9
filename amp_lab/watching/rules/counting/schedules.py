"""Learning rates that move when no step was taken, or do not move when one was.

What has to wait for real steps is what moves in every step. A scheduler that steps once an epoch, one that is given a
metric, and one that is told its position (`scheduler.step(epoch + batch / batches)`) may do so in any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from amp_lab.watching.recording.events import Averaged, Event, Scheduled, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import (
    FEW,
    Turn,
    active_scalers,
    asked,
    by_line,
    in_every_step,
    in_nearly_all,
    in_steps,
    only_if_taken,
    real_steps,
    skipped_steps,
    steps_of,
    turns,
    was_skipped,
)
from amp_lab.watching.words import in_words

_SHARE: Final = 0.05  # of skipped steps: below it, a schedule over batches is as good as one over steps


@rule("scheduler-on-skip", Severity.WRONG, title="the learning rate moves though the step was skipped")
def scheduler_on_skip(run: Run) -> Iterator[Finding]:
    """A scheduler that counts steps was stepped in steps that the scaler skipped.

    After a skipped step the weights are what they were, but the learning rate is that of the next step: a part of
    warm-up, or of the schedule's best rates, is used up for nothing. PyTorch warns only if it happens in the very first
    step, and never with a fused optimizer, whose `step` is called all the same.

    Wrong:
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

    Right:
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= scale:
                scheduler.step()
    """
    for line in by_line(counting(run)):
        optimizer = line[0].optimizer
        moved = _moved_on_skip(run, line)
        if not moved or not in_nearly_all(steps_of(line), list(asked(run, optimizer))):
            continue
        kept = [event for event in line if event.step in moved]
        yield Finding(
            f"{line[0].kind} was stepped in {in_steps(moved)}, though the scaler had skipped the step: "
            f"{_how_it_moved(run, kept, optimizer)}{_though_it_ran(run, optimizer)}.",
            _with_steps(run, kept or line),
            {"skipped steps in which it moved": len(moved)},
            only_if_taken(
                run,
                (kept or line)[0],
                "Step the scheduler only if the optimizer stepped: the scale sinks only after a skipped step.",
            ),
        )


def _moved_on_skip(run: Run, line: Sequence[Scheduled]) -> list[int]:
    """Return the skipped steps in which a scheduler moved. One that moved in every step did so in those "
    "not kept, too."""
    skipped = set(skipped_steps(run, line[0].optimizer))
    if len(run.optimizers) == 1 and in_every_step(run, line):
        skipped |= set(run.skips) - run.kept_steps
        return sorted(skipped)
    return sorted(skipped & set(steps_of(line)))


def _how_it_moved(run: Run, kept: Sequence[Scheduled], optimizer: int | None) -> str:
    """Say how far the rate had come in the first row of skipped steps, before a step was taken again."""
    if not kept:
        return "it moved on and no weight had moved"
    first = kept[0]
    taken = [e for e in run.of(Stepped) if e.optimizer == (optimizer or 0) and e.number > first.number]
    step = next((e for e in taken if not was_skipped(e) and not e.raised and e.rates), None)
    row = [e for e in kept if step is None or e.number < step.number]
    if first.before == row[-1].after:
        return "it counts a step there, and no weight had moved"
    went = (
        f"the learning rate went from {rate(first.before)} to {rate(row[-1].after)} and no weight had moved"
    )
    if step is None or len(row) == 1:
        return went
    return f"until the first step that was taken, step {step.step:,}, {went}"


def _though_it_ran(run: Run, optimizer: int | None) -> str:
    fused = optimizer is not None and run.optimizers[optimizer].fused
    return " (a fused optimizer: its step() is called, and does nothing)" if fused else ""


def counting(run: Run) -> list[Scheduled]:
    """Return the calls of schedulers that count them: not by hand, with no metric, no position given."""
    return [e for e in run.of(Scheduled) if e.scheduler is not None and not e.with_metric and not e.given]


def rate(rates: Sequence[float]) -> str:
    """Write the learning rates of all groups: one number if they are the same."""
    return in_words(rates[0]) if len(set(rates)) == 1 else in_words(tuple(rates))


def _with_steps(run: Run, events: Sequence[Event]) -> tuple[Event, ...]:
    """Return events with the skipped steps after the first of them, in order: that one is the line that is wrong."""
    steps = {event.step for event in events}
    skips = [event for event in run.of(Stepped) if event.step in steps and was_skipped(event)]
    skips = [event for event in skips if event.number > events[0].number]
    return tuple(sorted([*events, *skips], key=lambda event: event.number))


@rule(
    "rate-on-skip", Severity.NOTE, title="the learning rate written by hand moves though the step was skipped"
)
def rate_on_skip(run: Run) -> Iterator[Finding]:
    """A learning rate that the loop writes itself, in each step, went on after a skipped step.

    A rate made from a counter of batches moves with it, also where no step was taken. If the schedule is one over data,
    that is what you want. If it is one over steps, a warm-up above all, count the steps that were taken, and make the
    rate from that number. (Nothing is said while less than one step in 20 was skipped.)

    Wrong:
        for number, (x, y) in enumerate(batches_overflow):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * 0.9**number
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        taken = 0
        for x, y in batches_overflow:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * 0.9**taken
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            taken += scaler.get_scale() >= scale
    """
    scheduled = {event.optimizer for event in run.of(Scheduled) if event.scheduler is not None}
    for optimizer in range(len(run.optimizers)):
        pairs = [] if scheduled & {optimizer, None} else _neighbours(run, optimizer)
        after_skip = [(a, b) for a, b in pairs if was_skipped(a)]
        after_real = [(a, b) for a, b in pairs if not was_skipped(a)]
        moved = [(a, b) for a, b in after_skip if a.rates != b.rates]
        usual = sum(a.rates != b.rates for a, b in after_real)
        if not moved or len(after_real) < FEW or usual < len(after_real) / 2:
            continue
        if len(run.skips) < _SHARE * run.steps and len(moved) < _SHARE * len(pairs):
            continue
        skip, following = moved[0]
        yield Finding(
            f"The learning rate went from {rate(skip.rates)} in step {skip.step:,}, which was skipped, to "
            f"{rate(following.rates)} in step {following.step:,}: it counts skipped steps, too.",
            tuple(event for pair in moved for event in pair),
            {"times it moved after a skipped step": len(moved)},
            Fix(
                skip,
                say="Make the learning rate from a counter of the steps that were taken, if it is not meant to follow "
                "the data.",
            ),
        )


def _neighbours(run: Run, optimizer: int) -> list[tuple[Stepped, Stepped]]:
    """Return pairs of steps of an optimizer that follow each other, with a known learning rate."""
    steps = [events[-1] for events in asked(run, optimizer).values() if events[-1].rates]
    return [(a, b) for a, b in pairwise(steps) if b.step == a.step + 1]


@rule("growth-read-as-skip", Severity.WRONG, title="a scale that grew is taken for a skipped step")
def growth_read_as_skip(run: Run) -> Iterator[Finding]:
    """A real step was taken for a skipped one, because the scale had changed.

    The scale also changes when it grows. `scaler.get_scale() != before` is then true although the optimizer stepped,
    and the scheduler, or the average, misses a step. Only a scale that sank tells of a skipped step.

    Wrong:
        scaler = GradScaler(device_type, init_scale=64.0, growth_interval=4)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() == scale:
                scheduler.step()

    Right:
        scaler = GradScaler(device_type, init_scale=64.0, growth_interval=4)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= scale:
                scheduler.step()
    """
    moves: list[Scheduled | Averaged] = [*counting(run), *(e for e in run.of(Averaged) if e.kind)]
    for line in by_line(moves):
        moved = set(steps_of(line))
        optimizer = line[0].optimizer if isinstance(line[0], Scheduled) else None
        real = real_steps(run, optimizer)
        grown = [turn for turn in _grown(run) if turn.event.step in set(real)]
        others = set(real) - {turn.event.step for turn in grown}
        missed = [turn for turn in grown if turn.event.step not in moved]
        if not missed or len(missed) < len(grown) or len(others) < FEW or others - moved:
            continue
        first = missed[0]
        what = (
            f"{line[0].kind} was not stepped"
            if isinstance(line[0], Scheduled)
            else "the average was not updated"
        )
        yield Finding(
            f"In {in_steps(steps_of(turn.event for turn in missed))} the optimizer stepped, but {what}, as it was in "
            f"all other steps that were taken: the loss scale had grown from {in_words(first.before)} to "
            f"{in_words(first.after)}, and that was taken for a skipped step.",
            tuple(turn.event for turn in missed),
            {"steps missed": len(missed)},
            Fix(line[0], say="Compare with <, not with !=: only a scale that sank tells of a skipped step."),
        )


def _grown(run: Run) -> list[Turn]:
    return [turn for number in active_scalers(run) for turn in turns(run, number) if turn.after > turn.before]
