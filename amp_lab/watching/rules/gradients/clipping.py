"""Clipping: of the true gradients, once, after they are all there and before they are used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from amp_lab.watching.recording.events import (
    Backward,
    Clipped,
    Gradients,
    ScaleRead,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import written_with
from amp_lab.watching.rules.notices import divided_by_hand
from amp_lab.watching.rules.order import (
    EMPTY,
    Past,
    again,
    live,
    name,
    number,
    of,
    place,
    scaled,
    walk,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import counted, in_words

CALLS: Final = {"norm": "clip_grad_norm_", "value": "clip_grad_value_"}


@rule(
    "clip-before-unscale",
    Severity.WRONG,
    title="gradients clipped before unscale_()",
    explains=("clip-twice", "unscale-after-step", "clip-raises-on-overflow", "gradients-read-scaled"),
)
def clip_before_unscale(run: Run) -> Iterator[Finding]:
    """Gradients are clipped while they are still multiplied by the loss scale.

    Nearly every norm is above the limit then, so nearly every step is cut, and after unscaling it is as many times too
    small as the scale. Nothing is raised, and the loss falls very slowly. (Adam hides it: judge by the norm.)

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Wrong, by value:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_value_(model.parameters(), 0.1)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
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

    Right, with a limit that is scaled, too:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    """
    found = list(_of_scaled(run))
    if not found:
        return
    clip, loss = next(
        (each for each in found if each[0].norm and math.isfinite(each[0].norm.value)), found[0]
    )
    step, scale = clip.step, number(loss.scale)
    optimizer = clip.optimizers[0]
    more = again([each[0] for each in found])
    if clip.how == "norm" and clip.norm is not None:
        norm = clip.norm.value
        sentence = (
            f"clip_grad_norm_ saw a norm of {in_words(norm)} in step {step}{more}: that is the true norm, "
            f"{in_words(norm / scale)}, times the loss scale, {in_words(scale)}."
        )
    else:
        sentence = (
            f"{CALLS.get(clip.how, 'clipping')} cut gradients at {in_words(clip.limit)} in step {step}{more}, while "
            "they "
            f"were multiplied by the loss scale, {in_words(scale)}: that is a limit of "
            f"{in_words((clip.limit or 0.0) / scale)} for the true ones."
        )
    scaler = name(run, clip, "scaler", loss.scaled_by or 0)
    yield Finding(
        sentence,
        tuple(each[0] for each in found),
        {
            "norm that clip saw": clip.norm,
            "loss scale": scale,
            "true norm": clip.norm.value / scale if clip.norm else None,
            "limit": clip.limit,
        },
        Fix(
            clip,
            insert=(
                f"{place(run, 'scaler', loss.scaled_by or 0)}.unscale_({place(run, 'optimizer', optimizer)})",
            ),
            also=_without_later_unscale(run, clip),
            say=f"Call {scaler}.unscale_({name(run, clip, 'optimizer', optimizer)}) before clipping.",
        ),
    )


def _without_later_unscale(run: Run, clip: Clipped) -> tuple[Fix, ...]:
    """Take the user's own unscale_ out that comes too late in the same step: a second one would be refused."""
    return tuple(
        Fix(late, remove=("{line}",))
        for late in run.of(Unscaled)
        if late.step == clip.step
        and late.number > clip.number
        and late.optimizer in clip.optimizers
        and not late.by_step
    )


@rule("clip-half-unscaled", Severity.WRONG, title="one norm over unscaled and scaled gradients")
def clip_half_unscaled(run: Run) -> Iterator[Finding]:
    """One clipping goes over the gradients of several optimizers, and only some of them were unscaled.

    The norm is that of the scaled ones, and all are cut by it.

    Wrong:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_([*model.parameters(), *model_b.parameters()], 1.0)
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()

    Right:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer_b)
        clip_grad_norm_([*model.parameters(), *model_b.parameters()], 1.0)
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()
    """
    found: list[tuple[Clipped, Backward, int]] = []
    for event, past in walk(run):
        if isinstance(event, Clipped) and event.how in CALLS and len(event.optimizers) > 1:
            losses = {each: _scaled_loss(run, past, each) for each in event.optimizers}
            late = [each for each, loss in losses.items() if loss]
            if late and len(late) < len(losses):
                loss = losses[late[0]]
                assert loss is not None
                found.append((event, loss, late[0]))
    if found:
        clip, loss, late_one = found[0]
        scaler = name(run, clip, "scaler", loss.scaled_by or 0)
        optimizer = name(run, clip, "optimizer", late_one)
        norm = f" The norm it saw was {in_words(clip.norm)}." if clip.norm else ""
        yield Finding(
            f"{CALLS[clip.how]} went over the gradients of {counted(len(clip.optimizers), 'optimizer')} in step "
            f"{clip.step}"
            f"{again([each[0] for each in found])}, and those of {optimizer} were still multiplied by the loss scale, "
            f"{in_words(loss.scale)}.{norm}",
            tuple(each[0] for each in found),
            {"norm that clip saw": clip.norm, "loss scale": loss.scale, "limit": clip.limit},
            Fix(
                clip,
                insert=(
                    f"{place(run, 'scaler', loss.scaled_by or 0)}.unscale_({place(run, 'optimizer', late_one)})",
                ),
                say=f"Call {scaler}.unscale_({optimizer}), too, before clipping over both.",
            ),
        )


@rule("clip-after-step", Severity.WRONG, title="gradients clipped after the step")
def clip_after_step(run: Run) -> Iterator[Finding]:
    """Gradients are clipped when the step has been taken: it used them as they were.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()

    Wrong, in FP32:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)

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
    found: list[tuple[Clipped, Stepped]] = []
    for event, past in walk(run):
        if isinstance(event, Clipped) and event.how in CALLS and limits(event):
            steps = [_last_step(past, each) for each in event.optimizers]
            if steps and all(steps) and steps[-1] is not None and event.state not in EMPTY:
                found.append((event, steps[-1]))
    if found:
        clip, step = found[0]
        scaled = live(run, step.scaler) and step.state is Gradients.SCALED
        unscale = ("{scaler}.unscale_({optimizer})",) if scaled else ()
        yield Finding(
            f"{CALLS[clip.how]} was called after the step in step {clip.step}{again([each[0] for each in found])}: "
            "the step "
            "had used the gradients uncut.",
            tuple(event for each in found for event in each),
            {"norm that clip saw": clip.norm, "limit": clip.limit},
            Fix(
                clip,
                remove=("{line}",),
                also=(Fix(step, insert=(*unscale, "{moved}"), place="before"),),
                say="Clip before the step" + (", after unscale_." if live(run, step.scaler) else "."),
            ),
        )


@rule("clip-raises-on-overflow", Severity.RISK, title="error_if_nonfinite=True with a scaler")
def clip_raises_on_overflow(run: Run) -> Iterator[Finding]:
    """An infinite norm is to be an error, and with a scaler it is an everyday event.

    A scaler finds the right scale by overflowing now and then; `scaler.step` leaves such a step out, since unscale_ has
    noted the overflow. The exception stops the run there.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()

    Wrong, and it happens:
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            scaler.step(optimizer)
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

    Right, in FP32:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
    """
    found = [
        event for event, past in walk(run)
        if isinstance(event, Clipped) and event.error_if_nonfinite
        and any(_of_scaler(run, past, each) for each in event.optimizers)
    ]  # fmt: skip
    if found:
        raised = [e for e in found if e.raised]
        clip = raised[0] if raised else found[0]
        said = (
            f"stopped the run in step {clip.step} at an overflow of the gradients, which the scaler would have skipped"
            if raised
            else "will stop the run at the first overflow of the gradients, which the scaler would skip"
        )
        yield Finding(
            f"clip_grad_norm_ with error_if_nonfinite=True {said}.",
            tuple(raised or found),
            {"norm that clip saw": clip.norm},
            Fix(
                clip, say="Leave error_if_nonfinite out: after unscale_, the step of an overflow is skipped."
            ),
            Severity.WRONG if raised else None,
        )


def _of_scaled(run: Run) -> Iterator[tuple[Clipped, Backward]]:
    """Yield each clipping of scaled gradients that a scaler is to unscale later, and their backward pass.

    Not in a loop that divides gradients by the scale itself: what is seen of that in some steps holds for all.
    """
    if any(True for _ in divided_by_hand(run)):
        return
    for event, past in walk(run):
        if not isinstance(event, Clipped) or not limits(event) or event.state is not Gradients.SCALED:
            continue
        losses = [_scaled_loss(run, past, each) for each in event.optimizers]
        loss = losses[0] if losses and None not in losses else None
        if loss is not None and not _scaled_limit(event, loss, past) and _stepped_by_scaler(run, event):
            yield event, loss


def _scaled_loss(run: Run, past: Past, optimizer: int) -> Backward | None:
    """Return the scaled loss that made an optimizer's gradients, if they were not unscaled since."""
    since = past.since(ZeroGrad, optimizer) or past.since(Stepped, optimizer) or []
    for event in reversed(since):
        if isinstance(event, Unscaled | Stepped) and event.optimizer == optimizer and not event.raised:
            return None
        if isinstance(event, Backward) and optimizer in event.touched:
            return event if scaled(run, event) and number(event.scale) != 1 else None
    return None


def _scaled_limit(event: Clipped, loss: Backward, past: Past) -> bool:
    """Whether the limit was multiplied by the scale, too.

    The code of the call tells; else that the scale was read in this step, and is not far from the limit.
    """
    if loss.scaled_by is None or not event.limit:
        return False
    keyword = "clip_value" if event.how == "value" else "max_norm"
    written = written_with(event, CALLS.values(), 1, keyword, "scale")
    if written is not None:
        return written
    read = of(ScaleRead, past.since(Updated, loss.scaled_by))
    return bool(read) and 1e-3 <= event.limit / number(loss.scale) <= 1e3


def _stepped_by_scaler(run: Run, clip: Clipped) -> bool:
    """Whether the next step of the clipped gradients is a scaler's, or there is none."""
    steps = (e for e in run.of(Stepped) if e.number > clip.number and e.optimizer in clip.optimizers)
    step = next(steps, None)
    return step is None or live(run, step.scaler)


def _of_scaler(run: Run, past: Past, optimizer: int) -> bool:
    """Whether the gradients of an optimizer are those of a loss that was scaled."""
    since = past.since(ZeroGrad, optimizer) or past.since(Stepped, optimizer)
    return any(scaled(run, e) and optimizer in e.touched for e in of(Backward, since))


def _last_step(past: Past, optimizer: int) -> Stepped | None:
    """Return the step that an optimizer has taken since its last backward pass."""
    if not past.happened(Backward, optimizer):
        return None
    steps = of(Stepped, past.since(Backward, optimizer), optimizer)
    return steps[-1] if steps and not steps[-1].raised else None


def limits(event: Clipped) -> bool:
    """Whether it can cut anything: an infinite limit only measures."""
    return event.how in CALLS and (event.limit is None or math.isfinite(event.limit))
