"""What `scaler.step` divides by the loss scale must have been multiplied by it: once, and all of it."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Scaled,
    ScaleRead,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import whole_call
from amp_lab.watching.rules.order import (
    Past,
    after_zero,
    again,
    backwards,
    live,
    number,
    of,
    optimizer_of,
    scaled,
    scaler_of,
    walk,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule(
    "step-without-scale",
    Severity.WRONG,
    title="the scaler was used, but never to scale the loss",
    explains=("update-without-step", "update-before-step", "fp16-without-scaler"),
)
def step_without_scale(run: Run) -> Iterator[Finding]:
    """A scaler is asked to unscale, step or update, and has never scaled a loss.

    It makes its scale at the first `scale(loss)`. PyTorch raises "Attempted step but _scale is None".

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        loss.backward()
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
    for event, past in walk(run):
        if (
            not isinstance(event, Stepped | Unscaled | Updated)
            or not event.raised
            or not live(run, event.scaler)
        ):
            continue
        passes = of(Backward, past.since(Scaled, event.scaler or 0))
        if isinstance(event, Updated) and not passes:
            continue  # nothing was begun yet: see update-without-step
        if any(scaled(run, e) for e in passes):
            continue  # by another scaler: see two-scalers
        if past.happened(Scaled, event.scaler or 0) is False and not getattr(event, "by_step", False):
            call = {Stepped: "step", Unscaled: "unscale_", Updated: "update"}[type(event)]
            scaler = scaler_of(run, event)
            yield Finding(
                f"{scaler}.{call}(...) was called in step {event.step}, and {scaler}.scale(loss) had never been "
                "called: "
                + ("the loss was sent backward as it was." if passes else "nothing was sent backward."),
                (event, *passes[-1:]),
                fix=_scale_it(passes[-1], scaler) if passes else None,
            )
            return


@rule(
    "unscaled-backward",
    Severity.WRONG,
    title="backward() of the loss as it was, then scaler.step()",
    explains=("fp16-without-scaler",),
)
def unscaled_backward(run: Run) -> Iterator[Finding]:
    """`scaler.step` divides gradients by the loss scale that were never multiplied by it.

    Nothing is raised once the scaler has scaled any loss. With SGD the model hardly learns; Adam divides the factor out
    again, but for its eps. Where a part of the loss was scaled, the other part is lost.

    Wrong:
        reference = scaler.scale(torch.ones(())).item()  # the scaler has a scale now
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            loss.backward()
            scaler.step(optimizer)
            scaler.update()

    Wrong, for a part of the loss:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        penalty = 0.1 * sum(p.square().sum() for p in model.parameters())
        penalty.backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, added to the scaled loss:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        (scaler.scale(loss) + penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, each part scaled, and one that is nothing:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        nothing = 0.0 * sum(p.sum() for p in model.parameters())
        (scaler.scale(loss) + scaler.scale(penalty) + nothing).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, the other part multiplied by hand:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        (scaler.scale(loss) + scaler.get_scale() * penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, the other part after unscale_:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        penalty = 0.1 * sum(p.square().sum() for p in model.parameters())
        penalty.backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = [(step, loss) for step, loss, used in _never_multiplied(run) if used]
    if found:
        step, loss = found[0]
        scaler = scaler_of(run, step)
        yield Finding(
            f"{scaler}.step({optimizer_of(run, step)}) divided the gradients of a loss that was never scaled by "
            f"{in_words(step.scale)} in step {step.step}{again([each[0] for each in found])}: they are that many "
            "times too "
            "small.",
            tuple(event for each in found for event in (each[1], each[0])),
            {"loss scale": step.scale},
            _scale_it(loss, scaler),
        )
        return
    parts = list(_part_unscaled(run))
    if parts:
        step, loss = parts[0]
        scaler = scaler_of(run, step)
        yield Finding(
            f"Something that was not scaled was added to the scaled loss in step {loss.step}: "
            f"{scaler}.step({optimizer_of(run, step)}) divided its gradients by {in_words(step.scale)} with the "
            "others, so that this part of the loss counts for nothing.",
            tuple(event for each in parts for event in (each[1], each[0])),
            {"loss scale": step.scale},
            Fix(
                loss, say=f"Add the parts first, and scale their sum: {scaler}.scale(loss + part).backward()."
            ),
        )


@rule(
    "scaled-loss-unused",
    Severity.WRONG,
    title="the scaled loss was thrown away",
    explains=("fp16-without-scaler",),
)
def scaled_loss_unused(run: Run) -> Iterator[Finding]:
    """`scaler.scale(loss)` returns the scaled loss, and it is `loss` itself that is sent backward.

    scale() changes nothing in place. `scaler.step` then divides gradients that were never multiplied.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss)
        loss.backward()
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
    found = [(step, loss) for step, loss, used in _never_multiplied(run) if not used]
    if found:
        step, loss = found[0]
        scaler = scaler_of(run, step)
        yield Finding(
            f"What {scaler}.scale(...) returned was not used in step "
            f"{step.step}{again([each[0] for each in found])}: the "
            f"loss went backward unscaled, and {scaler}.step divided its gradients by {in_words(step.scale)}.",
            tuple(event for each in found for event in (each[1], each[0])),
            {"loss scale": step.scale},
            _scale_it(loss, scaler),
        )


@rule(
    "scaled-twice",
    Severity.WRONG,
    title="scale() applied twice to one loss",
    explains=("every-step-skipped", "scale-collapse", "scale-stuck", "init-scale-too-large"),
)
def scaled_twice(run: Run) -> Iterator[Finding]:
    """A loss is multiplied by the scale twice, and the gradients are divided by it once.

    What is left is a step as many times too large as the scale, or an overflow in every step, until the scale has sunk
    to where the product of both fits.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = scaler.scale(loss_fn(model(x), y))
        scaler.scale(loss).backward()
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
    found = [
        event for event in run.of(Scaled)
        if event.again is not None and live(run, event.again) and live(run, event.scaler) and number(event.scale) != 1
    ]  # fmt: skip
    if found:
        first = found[0]
        yield Finding(
            f"{scaler_of(run, first)}.scale was given a loss in step {first.step} that had been scaled already"
            f"{again(found)}: unscaling divides once, so the gradients stay {in_words(first.scale)} times too large.",
            tuple(found),
            {"loss scale": first.scale},
            Fix(first, say="Scale a loss once: take one of the two calls of scale() out."),
        )


@rule(
    "backward-after-unscale",
    Severity.WRONG,
    title="a scaled backward pass after unscale_()",
    explains=("unscale-each-micro-batch",),
)
def backward_after_unscale(run: Run) -> Iterator[Finding]:
    """Scaled gradients come on top of gradients that were unscaled already.

    `scaler.step` does not unscale a second time: what came after `unscale_` stays multiplied by the loss scale.

    Wrong:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(2), y.chunk(2)):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target) / 2
            scaler.scale(loss).backward()
            if target.data_ptr() == y.data_ptr():  # meant: the last part
                scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(2), y.chunk(2)):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    found = list(_scaled_late(run))
    if found:
        step, unscaled, late = found[0]
        scaler = scaler_of(run, step)
        yield Finding(
            f"A scaled loss was sent backward after {scaler}.unscale_ in step "
            f"{late.step}{again([e[0] for e in found])}: "
            f"{scaler}.step does not unscale again, and used these gradients {in_words(late.scale or step.scale)} "
            "times too "
            "large.",
            tuple(event for each in found for event in (each[2], each[1], each[0])),
            {"loss scale": late.scale or step.scale},
            Fix(
                unscaled,
                say=f"Call {scaler}.unscale_ after the last backward pass of the step.",
            ),
        )


def _scale_it(loss: Backward, scaler: str) -> Fix:
    """Return the change of a line from `loss.backward()` to `scaler.scale(loss).backward()`."""
    say = f"Send the scaled loss backward: {scaler}.scale(loss).backward()."
    call = whole_call(loss, "backward")
    if call is None or call[1].split(".")[-1] == "autograd":  # torch.autograd.backward(loss)
        return Fix(loss, say=say)
    return Fix(
        loss, remove=(call[0],), insert=(f"{scaler}.scale({call[1]})" + call[0][len(call[1]) :],), say=say
    )


def _never_multiplied(run: Run) -> Iterator[tuple[Stepped, Backward, bool]]:
    """Yield each step of a scaler on gradients of a loss that was not scaled, that loss, and whether another was."""
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised or event.closure or not live(run, event.scaler):
            continue
        window = past.since(Updated, event.scaler or 0) or []
        passes = list(backwards(_still_there(past, event), event.optimizer))
        plain = [e for e in passes if e.scaled_by is None and not e.raised and not _by_hand(e, event, window)]
        plain = [e for e in plain if not e.seeded]  # the gradient that it began from may have been scaled
        if plain and number(event.scale) != 1:
            used = any(scaled(run, e) for e in of(Backward, window))
            yield event, plain[-1], used or not of(Scaled, window)


def _part_unscaled(run: Run) -> Iterator[tuple[Stepped, Backward]]:
    """Yield each step of a scaler on gradients of a sum of which a part was not scaled, and that sum's backward pass.

    Not where the scale was asked for, or gradients of a scaled loss went into the loss: the part may have it inside.
    """
    for event, past in walk(run):
        if (
            not isinstance(event, Stepped)
            or event.raised
            or not live(run, event.scaler)
            or number(event.scale) == 1
        ):
            continue
        window = past.since(Updated, event.scaler or 0) or []
        if of(ScaleRead, window) or any(e.how == "grad" for e in of(Backward, window)):
            continue
        sums = [e for e in backwards(_still_there(past, event), event.optimizer) if e.unscaled_part]
        if sums and scaled(run, sums[-1]):
            yield event, sums[-1]


def _still_there(past: Past, step: Stepped) -> list[Event]:
    """Return the events whose gradients were there when they were unscaled: since zero_grad, before unscale_.

    What was there from earlier steps is another mistake.
    """
    since = past.since(Stepped, step.optimizer)
    events = list(after_zero(since or [], step.optimizer))
    for at, event in enumerate(events):
        if (
            isinstance(event, Unscaled)
            and event.optimizer == step.optimizer
            and not event.by_step
            and not event.raised
        ):
            return events[:at]
    return events


def _by_hand(loss: Backward, step: Stepped, window: list[Event]) -> bool:
    """Whether the user multiplied the loss by the scale: `(loss * scaler.get_scale()).backward()`."""
    if loss.divided_by is not None:
        return 0.99 < loss.divided_by * number(step.scale) < 1.01
    read = [e for e in of(ScaleRead, window) if e.number < loss.number]
    return bool(read) and loss.made_by.startswith("Mul")


def _scaled_late(run: Run) -> Iterator[tuple[Stepped, Unscaled, Backward]]:
    """Yield each step, the unscale_ before it, and a scaled backward pass between the two."""
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised or event.closure or not live(run, event.scaler):
            continue
        window = past.since(Updated, event.scaler or 0) or []
        unscaled = [e for e in of(Unscaled, window, event.optimizer) if not e.raised and not e.by_step]
        if not unscaled or number(event.scale) == 1:
            continue
        late = [
            e for e in backwards(window, event.optimizer) if e.number > unscaled[0].number and scaled(run, e)
        ]
        if late and not _zeroed(window, late[-1], event.optimizer):
            yield event, unscaled[0], late[-1]


def _zeroed(window: list[Event], late: Backward, optimizer: int) -> bool:
    """Whether the gradients of a backward pass were zeroed afterwards."""
    return any(
        isinstance(e, ZeroGrad) and optimizer in e.optimizers and e.number > late.number for e in window
    )
