"""Gradients that are looked at, or used for a penalty, while they are multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_lab.watching.recording.events import Backward, Clipped, Event, Gradients, ScaleRead
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import assigned
from amp_lab.watching.rules.notices import (
    divided_by_hand,
    named,
    number,
    scaled_by,
    unscale_first,
    where_it_shows,
)
from amp_lab.watching.rules.order import name
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule("gradients-read-scaled", Severity.WRONG, title="gradients looked at before unscale_()")
def gradients_read_scaled(run: Run) -> Iterator[Finding]:
    """A norm or a histogram of gradients is taken while they are multiplied by the loss scale.

    Logged, it jumps whenever the scale changes, and a limit means something else each time. A hook always sees it
    scaled. (A test for inf and NaN is the same before and after, and a norm divided by the scale is right.)

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        norm = model[0].weight.grad.norm().item()
        scaler.step(optimizer)
        scaler.update()

    Wrong, in a hook:
        norms = []
        model[0].weight.register_hook(lambda gradient: norms.append(gradient.norm()))
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Wrong, of all numbers together:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        optimizer.param_groups[0]["lr"] = float(min(0.1, 1.0 / norm))
        scaler.step(optimizer)
        scaler.update()

    Wrong, with a function of PyTorch:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = model[0].weight.grad.norm().item()
        scaler.step(optimizer)
        scaler.update()

    Right, divided by the scale, and tested:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        finite = torch.stack([p.grad.norm() for p in model.parameters()]).isfinite().all()
        norm = model[0].weight.grad.norm().item() / scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
    """
    found = sorted(_reads(run), key=lambda each: each[0].number)
    if not found:
        return
    event, call, size, scale = found[0]
    in_a_hook = " in a hook" if call.endswith("hook") else ""
    of = f" and gave {in_words(size)}" if size == size else ""
    truth = (
        f": divided by the scale, that is {in_words(size / scale)}"
        if size == size and "hist" not in call
        else ""
    )
    say = (
        f"Call {named(event, 'scaler')}.unscale_({named(event, 'optimizer')}) once after backward(), and look at the "
        "gradients then"
    )
    yield Finding(
        f"{call.removesuffix(' in a hook')} saw gradients{in_a_hook} in step {event.step} while they were "
        f"multiplied by the loss scale, {in_words(scale)},{of}{truth}.".replace(",.", "."),
        tuple(each[0] for each in found),
        {"what it gave": size, "loss scale": scale, "true": size / scale},
        Fix(event, say=f"{say} (not in a hook: hooks run before it).")
        if in_a_hook
        else unscale_first(run, event, f"{say}."),
    )


def _reads(run: Run) -> Iterator[tuple[Event, str, float, float]]:
    """Yield who looked at scaled gradients, what it was, what it gave, and the scale."""
    for event, seen in where_it_shows(run, "gradients read", lambda *_: True):
        scale = scaled_by(run, event)
        if scale > 1 and not _divides(run, event):
            yield event, str(event.values["call"]), number(seen["size"]), scale
    for event, seen in where_it_shows(run, "hook", lambda event, _: event.values["how"] == "read"):
        scale = scaled_by(run, event, after=True)
        if scale > 1 and not _divides(run, event):
            yield event, f"{event.values['call']} in a hook", number(seen["size"]), scale
    by_hand = any(True for _ in divided_by_hand(run))
    for clipped in () if by_hand else run.of(Clipped):
        if clipped.how == "measured" and clipped.state is Gradients.SCALED and not clipped.raised:
            scale = scaled_by(run, clipped)
            if scale > 1 and not _divides(run, clipped):
                yield clipped, "get_total_norm", number(clipped.norm), scale


def _divides(run: Run, event: Event) -> bool:
    """Return whether the loop asks for the scale in the same step: then it may well divide by it."""
    return any(each.step == event.step for each in run.of(ScaleRead))


@rule("penalty-of-scaled", Severity.WRONG, title="a penalty on scaled gradients")
def penalty_of_scaled(run: Run) -> Iterator[Finding]:
    """A gradient penalty is computed from gradients of the scaled loss, without dividing them by the scale first.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        penalty = sum(g.pow(2).sum() for g in gradients).sqrt()
        scaler.scale(loss + 1e-3 * penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        inverse = 1.0 / scaler.get_scale()
        gradients = [g * inverse for g in gradients]
        penalty = sum(g.pow(2).sum() for g in gradients).sqrt()
        scaler.scale(loss + 1e-3 * penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, of the loss itself:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
        penalty = sum(g.pow(2).sum() for g in gradients)
        scaler.scale(loss + 1e-3 * penalty).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    made = [e for e in run.of(Backward) if e.how == "grad" and e.create_graph and e.scaled_by is not None]
    found = [
        (event, seen)
        for event, seen in where_it_shows(run, "penalty", lambda *_: True)
        if any(each.step == event.step and each.number < event.number for each in made)
        and number(event.values["scale"]) > 1
    ]
    if not found:
        return
    event, seen = found[0]
    scale, size = number(event.values["scale"]), number(seen["size"])
    grad = [each for each in made if each.step == event.step and each.number < event.number][-1]
    given, alone = assigned(grad) or ("", False)
    yield Finding(
        f"A penalty was computed from {given or 'gradients'} in step {event.step}: these are gradients of a scaled "
        f"loss, {in_words(scale)} times those of the loss, and so the penalty is not the one that was meant.",
        tuple(each for each, _ in found),
        {f"largest result of {event.values['call']}": size, "loss scale": scale},
        _divide_first(run, grad, given, alone),
    )


def _divide_first(run: Run, grad: Backward, given: str, alone: bool) -> Fix:
    say = "Multiply them by 1 / scale before anything else is computed from them."
    if not given:
        return Fix(grad, say=say)
    inverse = f"1.0 / {name(run, grad, 'scaler', grad.scaled_by or 0)}.get_scale()"
    lines = (
        (f"{given} = {given} * ({inverse})",)
        if alone
        else (f"inverse = {inverse}", f"{given} = [each * inverse for each in {given}]")
    )
    return Fix(grad, insert=lines, place="after", say=say)


@rule(
    "anomaly-with-scaler", Severity.RISK, title="anomaly detection with a scaled loss", explains=("raised",)
)
def anomaly_with_scaler(run: Run) -> Iterator[Finding]:
    """Anomaly detection raises an error at the first NaN in a backward pass, and a scale that is too large makes some.

    Such an overflow is normal: the scaler skips the step and halves the scale. Look for a NaN at scale 1.

    Wrong:
        with torch.autograd.set_detect_anomaly(True):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, dtype=torch.float16):
                    loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    Right:
        scaler = GradScaler(device_type, init_scale=1.0, growth_interval=10**9)
        with torch.autograd.set_detect_anomaly(True):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, dtype=torch.float16):
                    loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    """
    found = where_it_shows(run, "anomaly", lambda _, seen: number(seen["scale"]) > 1)
    if found:
        event, seen = found[0]
        events: Sequence[Event] = [event]
        yield Finding(
            f"Anomaly detection is on while the loss is multiplied by {in_words(seen['scale'])}: it raises an error "
            "where the scaler would skip a step and halve the scale.",
            tuple(events),
            {"loss scale": seen["scale"]},
            Fix(event, say="Switch it on to look for a NaN only, with a scaler of init_scale=1.0."),
        )
