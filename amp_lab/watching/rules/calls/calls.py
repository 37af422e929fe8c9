"""The calls of a scaler: each in its place, each once in a step.

`scale`, `backward`, `unscale_` if somebody looks at the gradients, `step` for each optimizer, `update` once at the end.
PyTorch raises for most of these mistakes, but where the loop broke is not where it is wrong: the order of calls tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import Stepped, Unscaled
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.calls.refused import (
    accumulates,
    another,
    given_up_to_the_end,
    last,
    refused,
    unscaled_again,
)
from amp_lab.watching.rules.layout import turn_after_test, turn_below
from amp_lab.watching.rules.order import line_of, name, optimizer_of, place, scaler_of
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule("update-missing", Severity.WRONG, title="update() is missing after the step")
def update_missing(run: Run) -> Iterator[Finding]:
    """A second step begins, and `scaler.update()` was not called after the first.

    update() tells the scaler that a step is over: it sets the next scale and forgets which gradients were unscaled.
    Without it, PyTorch raises in the next step: "step() has already been called since the last update()", or
    "unscale_() is being called after step()".

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for event, before in refused(run):
        step = last(Stepped, before, event)
        if step is not None and another(before, step):
            scaler, optimizer = scaler_of(run, event), optimizer_of(run, event)
            call = "step" if isinstance(event, Stepped) else "unscale_"
            yield Finding(
                f"{scaler}.update() was not called after {scaler}.step({optimizer}): the next "
                f"{scaler}.{call}({optimizer}), for another backward pass, was refused.",
                (step, event),
                fix=Fix(
                    step,
                    insert=(f"{place(run, 'scaler', step.scaler or 0)}.update()",),
                    place="after",
                    say=f"Call {scaler}.update() once in every step, after the last {scaler}.step(...).",
                ),
            )
            return


@rule("step-twice", Severity.WRONG, title="scaler.step() twice for one optimizer")
def step_twice(run: Run) -> Iterator[Finding]:
    """The scaler is asked twice in one step to step the same optimizer.

    PyTorch raises "step() has already been called since the last update()": the second step would use the same
    gradients again.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for event, before in refused(run):
        step = last(Stepped, before, event)
        if isinstance(event, Stepped) and step is not None and not another(before, step):
            call = f"{scaler_of(run, event)}.step({optimizer_of(run, event)})"
            two = line_of(event) != line_of(step)
            yield Finding(
                f"{call} was called twice in step {event.step}, with no backward pass between: the second call was "
                "refused.",
                (event, step),
                fix=Fix(
                    event,
                    remove=("{line}",) if two else (),
                    say=f"Take one {call} out."
                    if two
                    else f"Call {call} once in a step: this line ran twice.",
                ),
            )
            return


@rule("unscale-after-step", Severity.WRONG, title="unscale_() after the step")
def unscale_after_step(run: Run) -> Iterator[Finding]:
    """The user unscales after `scaler.step`, which had unscaled already, and has used the gradients.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    for event, before in refused(run):
        step = last(Stepped, before, event)
        if isinstance(event, Unscaled) and step is not None and not another(before, step):
            scaler, optimizer = scaler_of(run, event), optimizer_of(run, event)
            yield Finding(
                f"{scaler}.unscale_({optimizer}) came after {scaler}.step({optimizer}) in step {event.step}: step() "
                "had unscaled the gradients itself, and used them.",
                (event, step),
                fix=Fix(
                    event,
                    remove=("{line}",),
                    also=(Fix(step, insert=("{moved}",), place="before"),),
                    say=f"Call {scaler}.unscale_({optimizer}) before the step, and clip between the two.",
                ),
            )
            return


@rule("unscale-twice", Severity.WRONG, title="unscale_() twice in a step")
def unscale_twice(run: Run) -> Iterator[Finding]:
    """The same gradients are to be unscaled twice: they would be divided by the loss scale twice.

    PyTorch raises "unscale_() has already been called on this optimizer since the last update()".

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.unscale_(optimizer)
        clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    """
    for event, before in refused(run):
        first = last(Unscaled, before, event)
        if not isinstance(event, Unscaled) or first is None or last(Stepped, before, event):
            continue
        if not another(before, first):  # otherwise see continue-before-update, unscale-each-micro-batch
            call = f"{scaler_of(run, event)}.unscale_({optimizer_of(run, event)})"
            yield Finding(
                f"{call} was called twice in step {event.step} for the same gradients: the second call was refused, "
                "for it would have divided them by the loss scale again.",
                (event, first),
                {"loss scale": event.scale or first.scale},
                Fix(event, remove=("{line}",), say=f"Take the second {call} out."),
            )
            return


@rule(
    "continue-before-update",
    Severity.WRONG,
    title="the loop turned back between backward() and update()",
    explains=("optimizer-never-stepped",),
)
def continue_before_update(run: Run) -> Iterator[Finding]:
    """A step is given up after the backward pass, and `update()` is left out with it.

    After `unscale_` the scaler thinks the old gradients are still at hand, and PyTorch raises at the next unscale_():
    "has already been called on this optimizer since the last update()". update() is needed in every step whose
    gradients were unscaled, also when you decide not to use them.

    Who looks for inf and NaN himself, and turns back before step(), keeps the overflow from the scaler, which alone
    could lower the scale: from then on every step overflows, and is given up in silence.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip_grad_norm_(model.parameters(), 1.0) > 1.0:
            continue
        scaler.step(optimizer)
        scaler.update()

    Wrong, in silence:
        scaler = GradScaler(device_type, init_scale=2.0**24)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            if any(not p.grad.isfinite().all() for p in model.parameters()):
                continue
            scaler.step(optimizer)
            scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip_grad_norm_(model.parameters(), 1.0) > 1.0:
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()

    Right, turning back before the backward pass:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        if loss > 1e6:
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for event, first, before in unscaled_again(run):
        if not accumulates(run, first, before):
            scaler = scaler_of(run, event)
            turn = turn_below(first)
            yield Finding(
                f"The loop turned back between {scaler}.unscale_ and {scaler}.update(): the next {scaler}.unscale_"
                f"({optimizer_of(run, event)}), for another backward pass, was refused.",
                (first, event),
                fix=Fix(
                    turn or first,
                    insert=(f"{place(run, 'scaler', event.scaler)}.update()",) if turn else (),
                    say=f"Call {scaler}.update() also in a step that you leave out, before you turn back.",
                ),
            )
            return
    yield from _given_up(run)


def _given_up(run: Run) -> Iterator[Finding]:
    """Yield the finding for a loop that ends in backward passes whose gradients it tested itself and threw away."""
    for optimizer in range(len(run.optimizers)):
        lost = given_up_to_the_end(run, optimizer)
        turn = turn_after_test(lost[-1]) if len(lost) >= 5 else None
        if turn is None:
            continue
        scaler = name(run, lost[-1], "scaler", lost[-1].scaled_by or 0)
        step = f"{scaler}.step({name(run, lost[-1], 'optimizer', optimizer)})"
        yield Finding(
            f"The loop tested the gradients itself and turned back before {step} after each of the last {len(lost)} "
            f"backward passes: the scaler never saw the overflow, and the loss scale stays at "
            f"{in_words(lost[-1].scale)}.",
            (turn, *lost),
            {"loss scale": lost[-1].scale},
            Fix(
                turn,
                say=f"Take the test out and let {step} do it: it leaves such a step out, and {scaler}.update() then "
                "lowers the scale.",
            ),
        )
        return
