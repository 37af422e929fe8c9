"""Averages of the weights: moved in skipped steps, a step too early, in too few bits, left out of the checkpoint.

An average that moves once an epoch, or in each hundredth step, may do so after a skipped step. One that is kept by
hand is seen in the first steps and around skipped ones only, see `Averaged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from amp_lab.watching.recording.events import Averaged, Backward, Event, Saved, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import (
    REGULAR,
    asked,
    by_line,
    in_every_step,
    in_nearly_all,
    in_steps,
    only_if_taken,
    skipped_steps,
    steps_of,
    was_skipped,
)
from amp_lab.watching.words import counted, in_words

_HALVES: Final = (torch.float16, torch.bfloat16)
_LEFT: Final = 0.01  # of a weight: an average that stops nearer than that is good enough
_LOOKED_AT: Final = 3  # steps at the beginning in which averages by hand are seen


@rule("average-on-skip", Severity.WRONG, title="the average moves though the step was skipped")
def average_on_skip(run: Run) -> Iterator[Finding]:
    """An average of the weights (EMA, SWA) was updated after a step that the scaler had skipped.

    The weights are the same as before: the average takes them in once more, and leans towards them. In warm-up at
    2^16, where several steps in a row may be skipped, it leans towards weights that were never trained.

    Wrong:
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            ema.update_parameters(model)

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
                ema.update_parameters(model)
    """
    for line in by_line(run.of(Averaged)):
        moved = _moved_on_skip(run, line)
        if not moved or not _in_each_step(run, line, list(asked(run))):
            continue
        kept = [event for event in line if event.step in moved] or line
        skips = [e for e in run.of(Stepped) if e.step in set(steps_of(kept)) and was_skipped(e)]
        yield Finding(
            f"{_called(line[0])} was updated in {in_steps(moved)}, though the scaler had skipped the step: "
            f"weights that had not moved were averaged once more.",
            tuple(sorted([*kept, *skips], key=lambda event: event.number)),
            {"skipped steps in which it moved": len(moved)},
            only_if_taken(
                run,
                kept[0],
                "Update the average only if the optimizer stepped: the scale sinks only after a skipped step.",
            ),
        )


def _moved_on_skip(run: Run, line: Sequence[Averaged]) -> list[int]:
    """Return the skipped steps in which an average moved. One that moved in every step did so in those not "
    "kept, too."""
    skipped = set(skipped_steps(run))
    if len(run.optimizers) == 1 and in_every_step(run, line):
        return sorted(skipped | (set(run.skips) - run.kept_steps))
    return sorted(skipped & set(steps_of(line)))


def _called(event: Averaged) -> str:
    return f"The {event.kind}" if event.kind else "The average of the weights"


def _in_each_step(run: Run, line: Sequence[Averaged], steps: Sequence[int]) -> bool:
    """Whether the average moves in nearly all of these steps; by hand, in those that were looked at."""
    if line[0].kind:
        return in_nearly_all(steps_of(line), steps)
    after = {step + 1 for step in skipped_steps(run)}
    seen = {step for step in steps if step <= _LOOKED_AT or step in after}
    return len(seen) >= 2 and len(seen & set(steps_of(line))) >= REGULAR * len(seen)


@rule(
    "average-before-step",
    Severity.RISK,
    title="the average is updated before the step",
    explains=("average-on-skip",),
)
def average_before_step(run: Run) -> Iterator[Finding]:
    """The average was updated between the backward pass and the optimizer's step.

    It takes in the weights of the step before: the newest never reach it, and the untrained ones do. Nor can it know
    there whether the scaler will skip the step.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        ema.update_parameters(model)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ema.update_parameters(model)
    """
    for line in by_line(run.of(Averaged)):
        early = [event for event in line if _between_backward_and_step(run, event)]
        if not early or not _in_each_step(run, early, list(asked(run))):
            continue
        steps = [step for step in run.of(Stepped) if step.step in set(steps_of(early))]
        yield Finding(
            f"{_called(early[0])} was updated before the optimizer stepped in {in_steps(steps_of(early))}: "
            "it is one step "
            "behind the weights.",
            tuple(sorted([*early, *steps], key=lambda event: event.number)),
            fix=Fix(
                early[0],
                ("{line}",),
                say="Update the average after the step, and only if it was taken.",
                also=(Fix(steps[0], insert=("{moved}",), place="after"),),
            ),
        )


def _between_backward_and_step(run: Run, event: Averaged) -> bool:
    own = asked(run).get(event.step, ())
    passes = [each for each in run.of(Backward) if each.step == event.step]
    begun = any(each.number < event.number for each in passes)
    return begun and bool(own) and all(step.number > event.number for step in own)


@rule("average-in-half", Severity.RISK, title="the average is kept in 16 bits")
def average_in_half(run: Run) -> Iterator[Finding]:
    """An average of weights in FP16 or BF16 stops following them.

    Each step adds a small share of the difference. FP16 loses what is below about 1/2,048 of a number, BF16 what is
    below about 1/256: with a share of 0.001 the average stands still long before it has reached the weights. Keep
    it in FP32, whatever the weights are.

    Wrong:
        ema = copy.deepcopy(model).bfloat16()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for average, weight in zip(ema.parameters(), model.parameters()):
                    average.lerp_(weight.bfloat16(), 0.001)

    Wrong, with the weights cast:
        ema = copy.deepcopy(model).half()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for average, weight in zip(ema.parameters(), model.parameters()):
                    average.mul_(0.9999).add_(weight.half(), alpha=0.0001)

    Wrong, as a new tensor:
        ema = copy.deepcopy(model).half()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for average, weight in zip(ema.parameters(), model.parameters()):
                    average.data.copy_(0.0001 * weight.data + 0.9999 * average.data)

    Right:
        ema = copy.deepcopy(model)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for average, weight in zip(ema.parameters(), model.parameters()):
                    average.lerp_(weight, 0.001)
    """
    for line in by_line(event for event in run.of(Averaged) if event.dtype in _HALVES):
        first = line[0]
        lost = torch.finfo(first.dtype).eps / 2
        if first.share and lost / first.share < _LEFT:
            continue
        dtype, part = in_words(first.dtype), f"1/{1 / lost:,.0f}"
        if first.share:
            what = f"moves by {in_words(first.share)} of the difference in each step"
            end = f"so it stands still while the weights are up to {lost / first.share:.0%} away"
        else:
            what = "takes in a small part of the weights in each step"
            end = "so it stops following them"
        yield Finding(
            f"{_called(first)} is kept in {dtype} and {what}: {dtype} loses changes below about {part} of a "
            f"number, {end}.",
            tuple(line),
            {"dtype of the average": first.dtype, "share of the new weights": first.share},
            Fix(
                first,
                say="Keep the average in FP32: copy.deepcopy(model).float(), and average FP32 weights into it.",
            ),
        )


@rule("average-not-saved", Severity.RISK, title="the checkpoint leaves the average out")
def average_not_saved(run: Run) -> Iterator[Finding]:
    """The run averages its weights, and saves everything but the average.

    After a restart the average begins with the weights of that moment: what it had gathered is lost.

    Wrong:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    Right:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema.state_dict()}
        torch.save(states, path)
    """
    moved: list[Event] = [event for event in run.of(Averaged) if event.kind]
    saved = list(run.of(Saved))
    resumable = [event for event in saved if "optimizer" in event.has and event.number > _first(moved)]
    if not moved or not resumable or any("averaged" in event.has for event in saved):
        return
    yield Finding(
        f"The checkpoint of {in_steps(steps_of(resumable))} holds the optimizer's state, but nothing of the "
        "average, which "
        f"had moved {counted(sum(event.number < resumable[-1].number for event in moved), 'time')}.",
        (moved[0], *resumable),
        fix=_saved_too(resumable[0], moved[0]),
    )


def _first(events: Sequence[Event]) -> int:
    return min((event.number for event in events), default=0)


def _saved_too(save: Saved, moved: Event) -> Fix:
    """Return the change that puts the average into the dictionary that is saved, if that stands in the "
    "line itself."""
    say = "Save the average's state_dict(), too, and load it before the first step."
    name, call, _ = moved.where.text.partition(".update_parameters(") if moved.where else ("", "", "")
    if not call or save.where is None or "{" not in save.where.text:
        return Fix(save, say=say)
    entry = f'{{optimizer}}.state_dict(), "average": {name}.state_dict()'
    return Fix(save, ("{optimizer}.state_dict()",), (entry,), say=say)
