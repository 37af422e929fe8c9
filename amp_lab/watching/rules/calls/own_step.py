"""`optimizer.step()` and `scaler.step(optimizer)`: with a scaler, the step is the scaler's."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import (
    Backward,
    Gradients,
    GradientsChanged,
    Stepped,
    Unscaled,
    Updated,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import goes_on, whole_call
from amp_lab.watching.rules.order import (
    after_zero,
    again,
    backwards,
    live,
    name,
    number,
    of,
    optimizer_of,
    place,
    scaled,
    scaler_of,
    walk,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule(
    "optimizer-step-instead",
    Severity.WRONG,
    title="optimizer.step() in place of scaler.step(optimizer)",
    explains=(
        "update-without-step",
        "update-before-step",
        "update-each-micro-batch",
        "clip-before-unscale",
        "clip-half-unscaled",
        "loss-not-finite",
        "every-step-skipped",
        "scale-collapse",
        "scale-stuck",
    ),
)
def optimizer_step_instead(run: Run) -> Iterator[Finding]:
    """The optimizer steps by itself on gradients that are still multiplied by the loss scale.

    The step is as many times too large as the scale, and is taken also when the gradients overflowed: infinite
    gradients make weights NaN. Adam hides the size. With `unscale_` before it the size is right, but nothing keeps an
    overflow from the weights, and the next unscale_() is refused, since update() has not been called.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()

    Wrong, with update():
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()
        scaler.update()

    Wrong, after unscale_:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Right, in FP32:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    """
    both = {own.number for own, _ in _both(run)}
    alone = [(step, loss) for step, loss in _on_scaled(run) if step.number not in both]
    if alone:
        step, loss = alone[0]
        yield Finding(
            f"{optimizer_of(run, step)}.step() was called in step {step.step} in place of {_call(run, step, loss)}"
            f"{again([each[0] for each in alone])}: its gradients were still multiplied by the loss scale, "
            f"{in_words(loss.scale or step.scale)}.",
            (*(each[0] for each in alone), *_refused_then(run, step)),
            {"loss scale": loss.scale or step.scale},
            _by_scaler(run, step, loss.scaled_by or 0, update=not run.counts.get("Updated")),
        )
        return
    found = sorted(_after_unscale(run), key=lambda each: (not _overflowed(each[1]), each[2] is None))
    for step, unscaled, refused in found[:1]:
        scaler = scaler_of(run, unscaled)
        yield Finding(
            f"{optimizer_of(run, step)}.step() was called in step {step.step} in place of {scaler}.step(...): "
            + _what_then(unscaled, refused, scaler),
            (step, *((refused,) if refused else ())),
            {"loss scale": unscaled.scale},
            _by_scaler(run, step, unscaled.scaler, update=refused is not None),
            None if refused or _overflowed(unscaled) else Severity.RISK,
        )


@rule(
    "optimizer-step-as-well",
    Severity.WRONG,
    title="optimizer.step() next to scaler.step(optimizer)",
    explains=("loss-not-finite", "every-step-skipped", "scale-collapse", "scale-stuck"),
)
def optimizer_step_as_well(run: Run) -> Iterator[Finding]:
    """`scaler.step(optimizer)` calls `optimizer.step()` itself: a second call steps twice with the same gradients.

    Called before, it uses gradients that are multiplied by the loss scale; after, it steps also where the scaler has
    just skipped a step.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        optimizer.step()
        scaler.update()

    Wrong, the other way round:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()
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
    found = list(_both(run))
    if found:
        own, by_scaler = found[0]
        first = own.number < by_scaler.number
        size = (
            f"the first used gradients multiplied by the loss scale, {in_words(by_scaler.scale)}"
            if first and own.state is not Gradients.UNSCALED
            else "the second used the same gradients again"
        )
        yield Finding(
            f"{optimizer_of(run, own)}.step() and {scaler_of(run, by_scaler)}.step({optimizer_of(run, own)}) both "
            "stepped in "
            f"step {own.step}{again([each[0] for each in found])}: {size}.",
            tuple(event for each in found for event in each),
            {"loss scale": by_scaler.scale},
            Fix(own, remove=("{line}",), say="Take the optimizer's own step out: scaler.step calls it."),
        )


@rule(
    "closure-given",
    Severity.WRONG,
    title="a closure given to scaler.step()",
    explains=(
        "no-gradients",
        "unscaled-backward",
        "backward-after-unscale",
        "zero-grad-before-step",
        "backward-twice",
    ),
)
def closure_given(run: Run) -> Iterator[Finding]:
    """A closure computes loss and gradients anew inside the step: the scaler has unscaled and looked before that.

    With the name `closure=` PyTorch raises "Closure use is not currently supported if GradScaler is enabled". As a
    second argument it slips through, and the step is taken with gradients that nobody unscaled.

    Wrong:
        def closure():
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            return loss
        closure()
        scaler.step(optimizer, closure=closure)
        scaler.update()

    Wrong, in silence:
        def closure():
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            return loss
        closure()
        scaler.step(optimizer, closure)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, in FP32:
        def closure():
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
    """
    found = [e for e in run.of(Stepped) if e.closure and live(run, e.scaler)]
    if found:
        first = found[0]
        what = "it was refused" if first.raised else "the gradients that it computed were never unscaled"
        yield Finding(
            f"{scaler_of(run, first)}.step({optimizer_of(run, first)}) was given a closure in step {first.step}"
            f"{again(found)}: {what}.",
            tuple(found),
            {"loss scale": first.scale},
            Fix(
                first,
                say="Compute loss and gradients before the step and call it without a closure; LBFGS, which needs one, "
                "belongs into FP32 or BF16, without a scaler.",
            ),
        )


def _call(run: Run, step: Stepped, loss: Backward) -> str:
    return f"{name(run, step, 'scaler', loss.scaled_by or 0)}.step({optimizer_of(run, step)})"


def _by_scaler(run: Run, step: Stepped, scaler: int, update: bool = False) -> Fix:
    """Return the change from `optimizer.step()` to `scaler.step(optimizer)`."""
    call = whole_call(step, "step")
    of_scaler = place(run, "scaler", scaler)
    said = name(run, step, "scaler", scaler)
    new = f"{of_scaler}.step({call[1] if call else place(run, 'optimizer', step.optimizer)})"
    return Fix(
        step,
        remove=("{line}",),
        insert=(new, f"{of_scaler}.update()") if update else (new,),
        say="Let the scaler step: it unscales, and leaves a step with infinite gradients out. Then call "
        f"{said}.update().",
    )


def _on_scaled(run: Run) -> Iterator[tuple[Stepped, Backward]]:
    """Yield each optimizer.step() on gradients of a scaled loss, and the backward pass that made them."""
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.scaler is not None or event.closure:
            continue
        if event.state not in (Gradients.SCALED, Gradients.MIXED):
            continue
        events = after_zero(past.since(Stepped, event.optimizer) or [], event.optimizer)
        losses = [e for e in backwards(events, event.optimizer) if scaled(run, e) and number(e.scale) != 1]
        if losses and not _changed(run, event.optimizer) and not of(Unscaled, events, event.optimizer):
            yield event, losses[-1]


def _changed(run: Run, optimizer: int) -> bool:
    """Whether the user's own code was seen to change gradients: it may have unscaled them."""
    return any(e.optimizer == optimizer and e.changed.value for e in run.of(GradientsChanged))


def _both(run: Run) -> Iterator[tuple[Stepped, Stepped]]:
    """Yield an optimizer's own step, and the scaler's, where no backward pass is between them."""
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised:
            continue
        since = past.since(Backward, event.optimizer)
        for other in of(Stepped, since, event.optimizer)[-1:]:
            own, by_scaler = (event, other) if event.scaler is None else (other, event)
            if own.scaler is None and not own.closure and live(run, by_scaler.scaler):
                yield own, by_scaler


def _what_then(unscaled: Unscaled, refused: Unscaled | None, scaler: str) -> str:
    if _overflowed(unscaled):
        return "the gradients had overflowed, and the weights took them."
    if refused:
        return f"an overflow would reach the weights, and without {scaler}.update() the next unscale_ was refused."
    return "after unscale_ nothing keeps an overflow from the weights."


def _refused_then(run: Run, step: Stepped) -> list[Updated]:
    """Return the update that was refused after an optimizer's own step."""
    return [e for e in run.of(Updated) if e.raised and e.number > step.number][:1]


def _overflowed(unscaled: Unscaled) -> bool:
    return unscaled.found_inf is not None and unscaled.found_inf.value


def _after_unscale(run: Run) -> Iterator[tuple[Stepped, Unscaled, Unscaled | None]]:
    """Yield an own step after unscale_ that took an overflow, or would: nothing in the code asks for one.

    And the next unscale_, if that was refused, because update() was not called.
    """
    for event, past in walk(run):
        if (
            not isinstance(event, Stepped)
            or event.scaler is not None
            or event.state is not Gradients.UNSCALED
        ):
            continue
        since = past.since(Backward, event.optimizer)
        calls = [e for e in of(Unscaled, since, event.optimizer) if not e.by_step and not e.raised]
        unscaled = calls[-1] if calls and live(run, calls[-1].scaler) else None
        if unscaled is not None and not of(Stepped, since, event.optimizer):
            refused = _next_refused(run, unscaled)
            if refused or _overflowed(unscaled) or goes_on(unscaled, event):
                yield event, unscaled, refused


def _next_refused(run: Run, unscaled: Unscaled) -> Unscaled | None:
    """Return the next unscale_, if it was refused and no update came before it."""
    for event in run.events:
        if (
            event.number > unscaled.number
            and isinstance(event, Updated | Unscaled)
            and event.scaler == unscaled.scaler
        ):
            return event if isinstance(event, Unscaled) and event.raised else None
    return None
