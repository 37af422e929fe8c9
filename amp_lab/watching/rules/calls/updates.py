"""`update()`: once in a step, after the step of every optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import Backward, Event, Forward, Scaled, Stepped, Unscaled, Updated
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.calls.refused import Meant, meant, refused_updates, waiting_updates
from amp_lab.watching.rules.order import again, live, number, of, scaler_of, times, walk
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule("update-twice", Severity.WRONG, title="update() twice in a step")
def update_twice(run: Run) -> Iterator[Finding]:
    """A second `update()` follows the first, and no gradients were looked at between.

    PyTorch raises "No inf checks were recorded prior to update".

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for event, past in refused_updates(run):
        before = past.since(Updated, event.scaler)
        if past.happened(Updated, event.scaler) and not _turned(before):
            call = f"{scaler_of(run, event)}.update()"
            yield Finding(
                f"{call} was called twice in step {event.step}: between the two calls no gradients were looked at, and "
                "the second was refused.",
                (event,),
                fix=Fix(event, remove=("{line}",), say=f"Call {call} once in a step."),
            )
            return


@rule(
    "update-before-step",
    Severity.WRONG,
    title="update() before the step",
    explains=("no-gradients", "update-without-step", "update-missing"),
)
def update_before_step(run: Run) -> Iterator[Finding]:
    """`update()` comes between the backward pass and `step`.

    Without `unscale_` before, PyTorch raises "No inf checks were recorded prior to update". With it nothing is said:
    update() forgets that the gradients were unscaled, and step() divides them by the loss scale a second time.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.update()
        scaler.step(optimizer)

    Wrong, in silence:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()
        scaler.step(optimizer)

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
    for update, before in waiting_updates(run):
        what, place = meant(run, update, before)
        if what is Meant.AFTER_STEP and place is not None:
            scaler = scaler_of(run, update)
            yield Finding(
                f"{scaler}.update() was called before {scaler}.step(...) in step {update.step}: no gradients had been "
                "looked at, and it was refused.",
                (update,),
                fix=_below(update, place, scaler),
            )
            return
    found = list(_unscaled_again(run))
    if found:
        step, update, unscaled = found[0]
        scaler = scaler_of(run, update)
        yield Finding(
            f"{scaler}.update() came between the backward pass and {scaler}.step(...) in step {step.step}: "
            + (_forgot(update) if unscaled else _changed(update))
            + f"{again([each[0] for each in found])}.",
            tuple(event for each in found for event in (each[1], each[0])),
            {"scale before update": update.before, "scale after it": update.after},
            _below(update, step, scaler),
        )


def _below(update: Updated, step: Stepped | Updated, scaler: str) -> Fix:
    return Fix(
        update,
        remove=("{line}",),
        also=(Fix(step, insert=("{moved}",), place="after"),),
        say=f"Call {scaler}.update() after the last {scaler}.step(...).",
    )


@rule("update-without-step", Severity.WRONG, title="update() where no gradients had been unscaled")
def update_without_step(run: Run) -> Iterator[Finding]:
    """`update()` is called in a step in which neither `unscale_` nor `step` looked at gradients.

    update() sets the scale by what they found. PyTorch raises "No inf checks were recorded prior to update".

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.update()

    Wrong, in a step that is left out:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        if loss < 1e6:
            scaler.update()
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        if loss > 1e6:
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for event, past in refused_updates(run):
        before = past.since(Updated, event.scaler)
        if not _turned(before) or of(Stepped, before):
            continue
        scaled = any(e.scaler == event.scaler for e in of(Scaled, before))
        if scaled and meant(run, event, before or [])[0] is not Meant.UNKNOWN:
            continue
        scaler = scaler_of(run, event)
        why = "the loss was scaled and sent backward, but " if scaled else ""
        yield Finding(
            f"{scaler}.update() was called in step {event.step} without {scaler}.step(...): {why}nothing had looked at "
            "gradients, so there was nothing to set the scale by, and it was refused.",
            (event,),
            fix=_step_first(event, scaler, one=len(run.optimizers) == 1) if scaled else Fix(
                event,
                remove=("{line}",),
                say=f"Without a backward pass there is nothing to update: take this {scaler}.update() out.",
            ),
        )  # fmt: skip
        return


def _step_first(event: Updated, scaler: str, one: bool) -> Fix:
    insert = ("{scaler}.step({optimizer})",) if one else ()
    return Fix(event, insert=insert, say=f"Call {scaler}.step(...) before {scaler}.update().")


def _turned(before: list[Event] | None) -> bool:
    """Whether a forward or backward pass is among them."""
    return any(isinstance(e, Forward | Scaled | Backward) for e in before or ())


def _unscaled_again(run: Run) -> Iterator[tuple[Stepped, Updated, bool]]:
    """Yield each step with an update since the backward pass, and whether it had been unscaled before that update."""
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised or not live(run, event.scaler):
            continue
        since = past.since(Backward, event.optimizer)
        updates = [e for e in of(Updated, since) if e.scaler == event.scaler and not e.raised]
        others = [e for e in of(Stepped, since) if e.scaler == event.scaler]
        if not updates or others or not past.happened(Backward, event.optimizer):
            continue
        unscaled = [
            e for e in of(Unscaled, since, event.optimizer) if e.number < updates[0].number and not e.raised
        ]
        if unscaled or number(updates[0].before) != number(updates[0].after):
            yield event, updates[0], bool(unscaled)


def _forgot(update: Updated) -> str:
    return (
        "it forgot that the gradients were unscaled, and step() divided them by the loss scale, "
        f"{in_words(update.after)}, a second time"
    )


def _changed(update: Updated) -> str:
    before, after = update.before, update.after
    return (
        f"the loss scale went from {in_words(before)} to {in_words(after)}, so that the unscaled gradients were "
        f"{times(number(before) / number(after))}"
    )
