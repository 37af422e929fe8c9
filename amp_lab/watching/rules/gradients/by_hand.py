"""Gradients that the loop's own code changes while they are multiplied by the loss scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_lab.watching.recording.events import Event, Noticed
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import (
    Seen,
    divided_by_hand,
    in_steps,
    knew_the_scale,
    named,
    number,
    scaled_by,
    stepped_by_scaler,
    unscale_first,
    where_it_shows,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


def _first_unscale(event: Event) -> str:
    return f"{named(event, 'scaler')}.unscale_({named(event, 'optimizer')})"


def _changed(run: Run, how: str) -> list[tuple[Noticed, Seen]]:
    """Return the changes of one kind that were made to scaled gradients by a loop that did not ask for the scale."""
    found = where_it_shows(run, "gradients changed", lambda event, _: event.values["how"] == how)
    return [each for each in found if scaled_by(run, each[0]) > 1]


def _in_hooks(run: Run, how: str) -> list[tuple[Noticed, Seen]]:
    found = where_it_shows(run, "hook", lambda event, _: event.values["how"] == how)
    return [each for each in found if scaled_by(run, each[0], after=True) > 1]


@rule(
    "unscaled-by-hand",
    Severity.WRONG,
    title="gradients divided by the scale twice",
    explains=("gradients-read-scaled", "clipped-by-hand", "unscale-twice"),
)
def unscaled_by_hand(run: Run) -> Iterator[Finding]:
    """Gradients are divided by the scale by hand, and then again by scaler.step, which knows nothing of it.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.div_(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()

    Wrong, and then clipped:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            inverse = 1 / scaler.get_scale()
            for p in model.parameters():
                p.grad.data.mul_(inverse)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()

    Wrong, as new gradients:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        inverse = 1 / scaler.get_scale()
        for p in model.parameters():
            p.grad = p.grad * inverse
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    Right, averaged by hand:
        optimizer.zero_grad()
        for part in (0, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x[part::2]), y[part::2])
            scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad /= 2
        scaler.step(optimizer)
        scaler.update()
    """
    found = sorted(_unscales(run), key=lambda each: each[0].number)
    if not found:
        return
    event, factor, scale = found[0]
    yield Finding(
        f"The gradients were divided by the loss scale, {in_words(scale)}, by hand in step {event.step}, and "
        f"{named(event, 'scaler')}.step divided them by it once more: the update is {in_words(scale)} times too "
        f"small.",
        tuple(each for each, *_ in found),
        {"factor by hand": factor, "loss scale": scale},
        Fix(
            event,
            remove=("{loop}",) if isinstance(event, Noticed) else (),
            insert=("{scaler}.unscale_({optimizer})",) if isinstance(event, Noticed) else (),
            say=f"Take the division out and call {_first_unscale(event)} in its place: then "
            f"{named(event, 'scaler')}.step knows of it.",
        ),
    )


def _unscales(run: Run) -> Iterator[tuple[Event, float, float]]:
    """Yield where gradients were divided by the scale before scaler.step, the factor and the scale."""
    return (each for each in divided_by_hand(run) if stepped_by_scaler(run, each[0]))


@rule(
    "clipped-by-hand",
    Severity.WRONG,
    title="gradients clipped by hand before unscale_()",
    explains=("gradients-read-scaled",),
)
def clipped_by_hand(run: Run) -> Iterator[Finding]:
    """The loop's own code clips gradients while they are multiplied by the loss scale: with a limit that is as many
    times too small.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.clamp_(-0.1, 0.1)
        scaler.step(optimizer)
        scaler.update()

    Wrong, by the norm:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            p.grad.clamp_(-0.1, 0.1)
        scaler.step(optimizer)
        scaler.update()

    Right, with a limit that is scaled, too:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        limit = 0.1 * scaler.get_scale()
        for p in model.parameters():
            p.grad.clamp_(-limit, limit)
        scaler.step(optimizer)
        scaler.update()
    """
    found = [*_changed(run, "clamped"), *_by_norm(run)]
    found = sorted(
        (each for each in found if not knew_the_scale(run, each[0])), key=lambda each: each[0].number
    )
    if found:
        event = found[0][0]
        scale = scaled_by(run, event)
        how = (
            str(event.values["call"]) if event.values["how"] == "clamped" else "a factor made from their norm"
        )
        yield Finding(
            f"Gradients were cut by {how} {in_steps(found)} while they were multiplied by the loss scale, "
            f"{in_words(scale)}: for the true ones that is a limit {in_words(scale)} times as small.",
            tuple(each for each, _ in found),
            {"loss scale": scale},
            unscale_first(run, event, f"Call {_first_unscale(event)} once, before clipping.")
            if event.values["how"] == "clamped"
            else Fix(event, say=f"Call {_first_unscale(event)} once, before their norm is taken."),
        )


def _by_norm(run: Run) -> Iterator[tuple[Noticed, Seen]]:
    """Yield multiplications by a factor from a norm: seen as such, or one that differs from step to step after "
    "a norm."""
    found = _changed(run, "multiplied")
    yield from (each for each in found if each[0].values["by_norm"])
    reads = {event.step: event.number for event, _ in where_it_shows(run, "gradients read", lambda *_: True)}
    plain = [
        (event, seen)
        for event, seen in found
        if not event.values["by_norm"]
        and reads.get(event.step, math.inf) < event.number
        and 0 < number(seen["factor"]) < 1
    ]
    if len({number(seen["factor"]) for _, seen in plain}) > 1:
        yield from plain


@rule("hook-clips-scaled", Severity.WRONG, title="a hook clips scaled gradients")
def hook_clips_scaled(run: Run) -> Iterator[Finding]:
    """A hook clamps gradients in the backward pass of a scaled loss: with a limit that is as many times too small.

    Wrong:
        for p in model.parameters():
            p.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        for p in model.parameters():
            p.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

    Right, with a scaler:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x).clamp(-9, 9), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_value_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    """
    found = [each for each in _in_hooks(run, "clamped") if not knew_the_scale(run, each[0])]
    if found:
        event = found[0][0]
        scale = scaled_by(run, event, after=True)
        yield Finding(
            f"A hook clamped gradients {in_steps(found)} in the backward pass of a loss that was multiplied by "
            f"{in_words(scale)}: for the true ones that is a limit {in_words(scale)} times as small.",
            tuple(each for each, _ in found),
            {"loss scale": scale},
            Fix(event, say=f"Clip after {_first_unscale(event)}, or multiply the limit by the scale."),
        )


@rule("overflow-hidden", Severity.WRONG, title="an overflow hidden from the scaler")
def overflow_hidden(run: Run) -> Iterator[Finding]:
    """nan_to_num on scaled gradients takes away the inf and NaN by which the scaler tells that its scale is too large.

    The step is not skipped but made, with zeros and with FP32's largest number in the place of what overflowed.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        scaler.step(optimizer)
        scaler.update()

    Wrong, with out=:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            torch.nan_to_num(p.grad, nan=0.0, posinf=1e5, neginf=-1e5, out=p.grad)
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
    found = [*_changed(run, "overflow hidden"), *_in_hooks(run, "overflow hidden")]
    found.sort(key=lambda each: each[0].number)
    if found:
        event = found[0][0]
        yield Finding(
            f"nan_to_num was called on scaled gradients {in_steps(found)}, before the scaler looked for inf and NaN "
            "in them: an overflow makes a step with wrong gradients, and the scale is never lowered.",
            tuple(each for each, _ in found),
            {"loss scale": max(scaled_by(run, event), scaled_by(run, event, after=True))},
            Fix(event, say="Leave it out: the scaler skips such a step, and halves the scale."),
        )


@rule("added-by-hand", Severity.WRONG, title="something unscaled added to scaled gradients")
def added_by_hand(run: Run) -> Iterator[Finding]:
    """Weight decay or noise is added to gradients that are multiplied by the scale: unscaling divides it, too.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.add_(p.data, alpha=0.01)
        scaler.step(optimizer)
        scaler.update()

    Wrong, noise:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad += 0.01 * torch.randn_like(p.grad)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad.add_(p.data, alpha=0.01)
        scaler.step(optimizer)
        scaler.update()
    """
    found = [each for each in _changed(run, "added") if not knew_the_scale(run, each[0])]
    if found:
        event = found[0][0]
        scale = scaled_by(run, event)
        what = "A multiple of the weights" if event.values["weights"] else "Noise"
        yield Finding(
            f"{what} was added to gradients {in_steps(found)} that were multiplied by the loss scale, "
            f"{in_words(scale)}: unscaling makes it that much too small.",
            tuple(each for each, _ in found),
            {"loss scale": scale},
            unscale_first(run, event, f"Call {_first_unscale(event)} once, before it is added."),
        )


@rule(
    "moved-by-scaled",
    Severity.WRONG,
    title="a step by hand with scaled gradients",
    explains=(
        "activation-overflows",
        "loss-not-finite",
        "every-step-skipped",
        "scale-collapse",
        "scale-stuck",
        "init-scale-too-large",
        "optimizer-never-stepped",
    ),
)
def moved_by_scaled(run: Run) -> Iterator[Finding]:
    """The loop itself moves weights or data along gradients that are multiplied by the loss scale.

    Sharpness-aware minimisation climbs to weights nearby before the real step, adversarial training moves the data:
    with scaled gradients such a step is as many times too large as the scale. (A gradient that is divided by its own
    norm, or only its sign, is the same at every scale.)

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        with torch.no_grad():
            climb = [0.05 * p.grad for p in model.parameters()]
            for p, e in zip(model.parameters(), climb):
                p.add_(e)
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), climb):
                p.sub_(e)
        scaler.step(optimizer)
        scaler.update()

    Wrong, of the data:
        x = x.clone().requires_grad_()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        harder = (x + 0.1 * x.grad).detach()
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = 1e-6 * loss_fn(model(harder), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        x = x.clone().requires_grad_()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        harder = (x + 0.1 * x.grad.sign() + 0.1 * x.grad / x.grad.norm()).detach()
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(harder), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, divided by the scale:
        x = x.clone().requires_grad_()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        harder = (x + 0.1 / scaler.get_scale() * x.grad).detach()
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(harder), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = [
        (event, seen)
        for event, seen in where_it_shows(
            run, "moved by gradients", lambda event, seen: number(seen["factor"]) * scaled_by(run, event) >= 1
        )
        if scaled_by(run, event) > 1 and not knew_the_scale(run, event)
    ]
    if found:
        event = found[0][0]
        scale = scaled_by(run, event)
        what = "Weights were" if event.values["weights"] else "Data were"
        yield Finding(
            f"{what} moved by hand along gradients {in_steps(found)} that were multiplied by the loss scale, "
            f"{in_words(scale)}: that step is as many times too large.",
            tuple(each for each, _ in found),
            {"loss scale": scale, "factor of the gradients": found[0][1]["factor"]},
            Fix(
                event,
                say=f"Divide these gradients by {named(event, 'scaler')}.get_scale() first, or by their norm.",
            ),
        )
