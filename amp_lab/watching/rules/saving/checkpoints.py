"""What a checkpoint holds, and when it was taken.

A checkpoint here is what holds an optimizer's state: weights alone may be for use, and need nothing else. It may be
one file or several. What is saved by other means than `torch.save` is not seen, so nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import torch

from amp_lab.watching.recording.events import (
    Event,
    Raised,
    Saved,
    Scaled,
    StateTaken,
    Stepped,
    Unscaled,
    Updated,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import active_scalers, in_steps, steps_of
from amp_lab.watching.words import in_words, read

Part = Literal["model", "optimizer", "scaler", "scheduler"]

HALVES: Final = {torch.float16, torch.bfloat16}
_STATELESS: Final = {"SGD"}  # without momentum there is nothing to save but the learning rate


def checkpoints(run: Run) -> list[list[Saved]]:
    """Return the savings of each step that hold a model and an optimizer, in one file or in several."""
    steps: dict[int, list[Saved]] = {}
    for event in run.of(Saved):
        steps.setdefault(event.step, []).append(event)
    return [files for files in steps.values() if {"model", "optimizer"} <= _parts(files)]


def _parts(files: list[Saved]) -> frozenset[str]:
    return frozenset().union(*(event.has for event in files))


def was_kept(run: Run, part: Part) -> bool:
    """Whether this run saved the state of such a thing, or took it, to be saved by other means."""
    saved = any(part in event.has for event in run.of(Saved))
    return saved or any(event.of == part and not event.empty for event in run.of(StateTaken))


@rule("scaler-not-saved", Severity.RISK, title="the checkpoint leaves the scaler out")
def scaler_not_saved(run: Run) -> Iterator[Finding]:
    """Model and optimizer are saved, the scaler is not.

    A run that goes on from such a checkpoint begins at a scale of 2^16 again: steps are skipped until the scale has
    found its place, and the result is another one than without the interruption.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        states = {"model": model, "optimizer": optimizer, "scaler": scaler}
        torch.save({name: each.state_dict() for name, each in states.items()}, path)
    """
    files = [event for each in checkpoints(run) for event in each]
    if not files or not active_scalers(run) or was_kept(run, "scaler"):
        return
    scale = run.scales[-1][1] if run.scales else _last_scale(run)
    yield Finding(
        f"The checkpoint of {in_steps(steps_of(files))} holds model and optimizer, but not the scaler: a "
        "run that goes on "
        f"from it begins at the scaler's initial scale again, not at {in_words(scale)}.",
        tuple(files),
        {"loss scale now": scale},
        _saved_with(
            files[0],
            "{optimizer}.state_dict()",
            '"scaler": {scaler}.state_dict()',
            "Save scaler.state_dict() with the others, and load it before the first step.",
        ),
    )


def _saved_with(event: Saved, beside: str, entry: str, say: str) -> Fix:
    """Return the change that puts an entry into the dictionary that is saved, if it stands in the line itself."""
    if event.where is None or "{" not in event.where.text:
        return Fix(event, say=say)
    return Fix(event, (beside,), (f"{beside}, {entry}",), say=say)


def _last_scale(run: Run) -> float | None:
    scales = [read(event.scale) for event in run.of(Scaled)]
    return scales[-1] if scales else None


@rule("optimizer-not-saved", Severity.RISK, title="the checkpoint leaves the optimizer out")
def optimizer_not_saved(run: Run) -> Iterator[Finding]:
    """Model and scaler are saved, so that the run can go on; the optimizer is not.

    Adam's averages of gradients then begin at zero again, and its first steps are as large as in a new run.

    Wrong:
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, path)

    Right:
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            states = {"model": model, "optimizer": optimizer, "scaler": scaler}
            torch.save({name: each.state_dict() for name, each in states.items()}, path)
    """
    files = [event for event in run.of(Saved) if {"model", "scaler"} <= event.has]
    kinds = [facts.kind for facts in run.optimizers if facts.kind not in _STATELESS]
    if not files or not kinds or was_kept(run, "optimizer"):
        return
    yield Finding(
        f"The checkpoint of {in_steps(steps_of(files))} holds model and scaler, but not the state of "
        f"{kinds[0]}: a run that "
        "goes on from it begins with an optimizer that remembers nothing.",
        tuple(files),
        fix=_saved_with(
            files[0],
            "{scaler}.state_dict()",
            '"optimizer": {optimizer}.state_dict()',
            "Save optimizer.state_dict() with the others.",
        ),
    )


@rule("checkpoint-in-half", Severity.WRONG, title="the checkpoint holds the weights in 16 bits")
def checkpoint_in_half(run: Run) -> Iterator[Finding]:
    """The FP32 weights of a run were saved in FP16 or BF16, together with what is needed to go on.

    FP16 makes 70,000 infinite and 1e-8 zero, and both forget the small changes that training in FP32 is for. Weights
    alone may be saved in 16 bits, for use; a checkpoint to go on from keeps FP32.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        weights = {name: each.bfloat16() for name, each in model.state_dict().items()}
        torch.save({"model": weights, "optimizer": optimizer.state_dict()}, path)

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    """
    if not run.models or any(facts.dtypes & HALVES for facts in run.models):
        return
    files = [event for each in checkpoints(run) for event in each if event.model_floats]
    halves = [event for event in files if event.model_floats & HALVES]
    if halves and len(halves) == len(files):
        yield Finding(
            f"The checkpoint of {in_steps(steps_of(halves))} holds the weights in "
            f"{in_words(halves[0].model_floats)}, while "
            "the run trains them in FP32: what FP32 keeps of small changes is lost when it goes on from there.",
            tuple(halves),
            {"dtypes in the file": halves[0].model_floats},
            Fix(
                halves[0],
                say="Save model.state_dict() as it is; save a second file in 16 bits for use, if you want one.",
            ),
        )


@rule("state-before-update", Severity.RISK, title="the scaler's state is taken before update()")
def state_before_update(run: Run) -> Iterator[Finding]:
    """The scaler's state was taken after the optimizer's step, but before `update()`.

    The state still has the scale of this step, and its count of good steps is one behind. If the step overflowed, the
    run that goes on from there overflows again.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        states = {"model": model, "optimizer": optimizer, "scaler": scaler}
        torch.save({name: each.state_dict() for name, each in states.items()}, path)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        states = {"model": model, "optimizer": optimizer, "scaler": scaler}
        torch.save({name: each.state_dict() for name, each in states.items()}, path)
    """
    taken = [pair for pair in _before_update(run) if run.scalers[pair[1].scaler].enabled]
    if not taken:
        return
    changed = [pair for pair in taken if read(pair[1].before) != read(pair[1].after)]
    state, update = (changed or taken)[0]
    what = "its count of good steps is one behind"
    if changed:
        what = f"it holds a scale of {in_words(update.before)}, while the run went on at {in_words(update.after)}"
    yield Finding(
        f"The scaler's state was taken after step() and before update() in "
        f"{in_steps(steps_of(a for a, _ in taken))}: "
        f"{what}.",
        tuple(event for pair in taken for event in pair),
        fix=_update_first(run, state, update),
    )


def _update_first(run: Run, state: StateTaken, update: Updated) -> Fix:
    """Return the change that moves update() up, to where the last optimizer has stepped."""
    say = "Take the states of a checkpoint after update()."
    steps = [each for each in run.of(Stepped) if each.scaler == update.scaler and each.number < state.number]
    return Fix(update, ("{line}",), say=say, also=(Fix(steps[-1], insert=("{moved}",), place="after"),))


def _before_update(run: Run) -> Iterator[tuple[StateTaken, Updated]]:
    """Yield states of scalers that were taken between a step and the update that belongs to it."""
    stepped: set[int] = set()
    open_states: list[StateTaken] = []
    for event in run.events:
        if isinstance(event, Stepped) and event.scaler is not None:
            stepped.add(event.scaler)
        elif isinstance(event, StateTaken) and event.of == "scaler" and event.index in stepped:
            open_states.append(event)
        elif isinstance(event, Updated):
            stepped.discard(event.scaler)
            yield from ((each, event) for each in open_states if each.index == event.scaler)
            open_states = [each for each in open_states if each.index != event.scaler]


@rule("scaler-pickled", Severity.WRONG, title="the scaler is copied in mid-iteration", explains=("raised",))
def scaler_pickled(run: Run) -> Iterator[Finding]:
    """A scaler was pickled or deep-copied between `unscale_` or `step` and `update`.

    In between it remembers what it has done with each optimizer, which means nothing in a copy: it refuses.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        saved = copy.deepcopy(scaler)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        saved = copy.deepcopy(scaler)
    """
    for event in run.of(Raised):
        began = _unfinished(run, event)
        if event.kind != "AssertionError" or "pickled" not in event.message or began is None:
            continue
        call = "unscale_" if isinstance(began, Unscaled) else "step"
        yield Finding(
            f"In step {event.step:,} the scaler was copied or pickled after {call}() and before update(), "
            "where it "
            "refuses to be.",
            (began, event),
            fix=Fix(
                event,
                ("copy.deepcopy({scaler})",),
                ("{scaler}.state_dict()",),
                say="Take scaler.state_dict(), which is a plain dictionary, or copy the scaler after update().",
            ),
        )


def _unfinished(run: Run, end: Event) -> Event | None:
    """Return the first unscale_ or step after the last update before an event."""
    began: Event | None = None
    for event in run.events:
        if event.number >= end.number:
            break
        if isinstance(event, Updated):
            began = None
        elif isinstance(event, Unscaled | Stepped) and not (isinstance(event, Unscaled) and event.by_step):
            began = began or event
    return began
