"""Clipping that does nothing, or not what it seems to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_lab.watching.recording.events import (
    Backward,
    Clipped,
    Forward,
    Gradients,
    Stepped,
    Unscaled,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.gradients.clipping import CALLS, limits
from amp_lab.watching.rules.order import (
    EMPTY,
    Past,
    again,
    line_of,
    live,
    name,
    of,
    optimizer_of,
    walk,
    windows,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule("clip-of-nothing", Severity.WRONG, title="clipping that reaches no gradient")
def clip_of_nothing(run: Run) -> Iterator[Finding]:
    """Clipping is called, and there is no gradient in what it is given.

    A generator, `parameters = model.parameters()`, is used up after the first call; the parameters are those of a copy
    of the model; or it comes before the backward pass.

    Wrong:
        parameters = model.parameters()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()

    Wrong, before the backward pass:
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        parameters = list(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
    """
    found = [
        e
        for e in run.of(Clipped)
        if e.how in CALLS and e.parameters == 0 and not e.optimizers and _no_norm(e)
    ]
    empty = [
        e for e in run.of(Clipped) if e.how in CALLS and e.optimizers and e.state in EMPTY and _no_norm(e)
    ]
    if found:
        clip = found[0]
        yield Finding(
            f"{CALLS[clip.how]} was given no parameter with a gradient in step {clip.step}{again(found)}: it cut "
            "nothing.",
            tuple(found),
            {"norm that clip saw": clip.norm},
            Fix(
                clip,
                say="Give it the parameters themselves, as a list or as model.parameters() in each call: a generator "
                "that was "
                "kept in a variable is used up after the first.",
            ),
        )
    elif empty and len(empty) == len([e for e in run.of(Clipped) if e.how in CALLS]):
        clip = empty[0]
        yield Finding(
            f"{CALLS[clip.how]} was called in step {clip.step}{again(empty)} when there were no gradients: they "
            "come with "
            "the backward pass.",
            tuple(empty),
            {"norm that clip saw": clip.norm},
            Fix(clip, say="Clip after the backward pass, before the step."),
        )


@rule("clip-twice", Severity.NOTE, title="gradients clipped twice by norm")
def clip_twice(run: Run) -> Iterator[Finding]:
    """The norm of the same gradients is cut twice: the smaller limit alone does the same.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), float("inf"))  # measured, not cut
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    """
    found: list[tuple[Clipped, Clipped]] = []
    for event, past in walk(run):
        if not isinstance(event, Clipped) or not _whole_norm(event) or not limits(event):
            continue
        since = past.since(Clipped, event.optimizers[0]) or []
        earlier = _just_before(past, event)
        if earlier is not None and not any(
            isinstance(e, Backward | Unscaled | Stepped | ZeroGrad) for e in since
        ):
            found.append((event, earlier))
    if found:
        second, first = found[0]
        yield Finding(
            f"clip_grad_norm_ was called twice for the same gradients in step {second.step}"
            f"{again([each[0] for each in found])}, with limits of {in_words(first.limit)} and "
            f"{in_words(second.limit)}: the "
            "smaller one alone does the same.",
            tuple(event for each in found for event in each),
            {"norm before the first": first.norm, "norm before the second": second.norm},
            Fix(second, remove=("{line}",) if line_of(first) != line_of(second) else (), say="Clip once."),
        )


@rule("clip-each-micro-batch", Severity.WRONG, title="gradients clipped before the last micro-batch")
def clip_each_micro_batch(run: Run) -> Iterator[Finding]:
    """With gradient accumulation, what has been summed so far is clipped after every micro-batch.

    The later micro-batches then weigh more than the first, and the sum may still be above the limit.

    Wrong:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            loss = loss_fn(model(part), target) / 4
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    Right:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            loss = loss_fn(model(part), target) / 4
            loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    """
    for optimizer in range(len(run.optimizers)):
        found: list[Clipped] = []
        for window in windows(run, optimizer):
            used = window.used
            lines = {line_of(e) for e in used}
            clips = [
                e for e in of(Clipped, window.events)
                if optimizer in e.optimizers and limits(e) and e.state is not Gradients.SCALED
                and used and used[0].number < e.number < used[-1].number
            ]  # fmt: skip
            if len(lines) == 1 and clips and any(isinstance(e, Forward) for e in window.events):
                found += clips
        if found:
            yield Finding(
                f"{CALLS[found[0].how]} was called between the micro-batches of step {found[0].step}{again(found)}: "
                "it cut a "
                "sum to which more gradients were added.",
                tuple(found),
                {"norm that clip saw": found[0].norm, "limit": found[0].limit},
                Fix(found[0], say="Clip once, after the last micro-batch, just before the step."),
            )
            return


@rule("clip-unused", Severity.WRONG, title="clipped gradients that no step uses")
def clip_unused(run: Run) -> Iterator[Finding]:
    """What is clipped belongs to an optimizer that does not step then: its gradients are zeroed before they are used.

    With two models it is easily the other model's parameters that are given to clip_grad_norm_.

    Wrong:
        optimizer_b.zero_grad()
        loss_fn(model_b(x), y).backward()
        clip_grad_norm_(model_b.parameters(), 1.0)
        optimizer_b.step()
        optimizer.zero_grad()
        (-model_b(model(x).expand(-1, 8)).mean()).backward()
        clip_grad_norm_(model_b.parameters(), 1.0)
        optimizer.step()

    Right:
        optimizer_b.zero_grad()
        loss_fn(model_b(x), y).backward()
        clip_grad_norm_(model_b.parameters(), 1.0)
        optimizer_b.step()
        optimizer.zero_grad()
        (-model_b(model(x).expand(-1, 8)).mean()).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    """
    ends = list(_ends(run))
    used = {line_of(clip) for clip, other in ends if other is None}
    lost = [(clip, other) for clip, other in ends if other is not None and line_of(clip) not in used]
    if len(lost) > 1:
        clip, other = lost[0]
        called, stepped = name(run, clip, "optimizer", clip.optimizers[0]), optimizer_of(run, other)
        yield Finding(
            f"{CALLS[clip.how]} cut the gradients of {called} in step "
            f"{clip.step}{again([each[0] for each in lost])}, and "
            f"then {stepped} stepped, whose gradients were left uncut; those of {called} were zeroed unused.",
            tuple(each[0] for each in lost),
            {"norm that clip saw": clip.norm, "limit": clip.limit},
            Fix(clip, say=f"Clip the parameters of {stepped}, which steps next."),
        )


@rule(
    "clip-of-infinite",
    Severity.WRONG,
    title="clipped gradients that were infinite, and stepped",
    explains=("loss-not-finite", "every-step-skipped", "scale-collapse"),
)
def clip_of_infinite(run: Run) -> Iterator[Finding]:
    """The norm of the gradients is infinite, clipping makes NaN of what was infinite, and the step follows.

    The factor is the limit divided by infinity, 0: most gradients become 0, and infinity times 0 is NaN. With a scaler
    the step is left out, since unscale_ has looked before; without one somebody must ask whether the norm is finite.

    Wrong:
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            if torch.equal(x, batches[3][0]):
                model[0].weight.grad[0, 0] = math.inf
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    Right:
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            if torch.equal(x, batches[3][0]):
                model[0].weight.grad[0, 0] = math.inf
            norm = clip_grad_norm_(model.parameters(), 1.0)
            if norm.isfinite():
                optimizer.step()

    Right, with a scaler:
        for x, y in batches_overflow:
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
        if not isinstance(event, Stepped) or live(run, event.scaler) or event.raised:
            continue
        clip, loss = past.last(Clipped, event.optimizer), past.last(Backward, event.optimizer)
        if clip is None or loss is None or clip.number < loss.number or not limits(clip) or clip.norm is None:
            continue
        if clip.norm.is_unknown:
            continue
        if loss.finite.value and not math.isfinite(clip.norm.value):
            found.append((clip, event))
    if found:
        clip, step = found[0]
        yield Finding(
            f"clip_grad_norm_ saw a norm that is {in_words(clip.norm)} in step {clip.step}, though the loss was "
            "finite, and "
            f"{optimizer_of(run, step)} stepped: infinity times 0 is NaN, and it is in the weights now.",
            tuple(event for each in found[:1] for event in each),
            {"norm that clip saw": clip.norm, "limit": clip.limit},
            Fix(step, say="Step only if the norm that clip_grad_norm_ returns is finite."),
        )


def _ends(run: Run) -> Iterator[tuple[Clipped, Stepped | None]]:
    """Yield each clipping of one optimizer's gradients when they are used (None), or zeroed after another's step."""
    waiting: dict[int, Clipped] = {}
    latest: Stepped | None = None
    for event in run.events:
        if (
            isinstance(event, Clipped)
            and len(event.optimizers) == 1
            and limits(event)
            and event.state not in EMPTY
        ):
            waiting[event.optimizers[0]] = event
        if isinstance(event, Stepped):
            latest = event
            if clip := waiting.pop(event.optimizer, None):
                yield clip, None
        for optimizer in event.optimizers if isinstance(event, ZeroGrad) else ():
            clip = waiting.pop(optimizer, None)
            if clip and latest and latest.number > clip.number:
                yield clip, latest


def _just_before(past: Past, event: Clipped) -> Clipped | None:
    """Return the clipping of the same gradients before this one."""
    known = past.since(Backward, event.optimizers[0])
    clips = [
        e for e in of(Clipped, known) if e.optimizers == event.optimizers and _whole_norm(e) and limits(e)
    ]
    return clips[-1] if clips else None


def _whole_norm(event: Clipped) -> bool:
    return event.how == "norm" and bool(event.optimizers) and event.parameters == event.of_all


def _no_norm(event: Clipped) -> bool:
    return not event.raised and event.norm is not None and event.norm.value == 0
