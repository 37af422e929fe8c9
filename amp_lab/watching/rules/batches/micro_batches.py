"""What belongs to the end of a window of micro-batches, done for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Forward,
    Noticed,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.calls.refused import Meant, accumulates, meant, unscaled_again, waiting_updates
from amp_lab.watching.rules.layout import replaces_gradients
from amp_lab.watching.rules.order import (
    EMPTY,
    after_zero,
    again,
    backwards,
    line_of,
    live,
    name,
    number,
    of,
    optimizer_of,
    scaled,
    scaler_of,
    walk,
    windows,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words


@rule(
    "unscale-each-micro-batch",
    Severity.WRONG,
    title="unscale_() for each micro-batch",
    explains=("clip-each-micro-batch", "update-missing"),
)
def unscale_each_micro_batch(run: Run) -> Iterator[Finding]:
    """With gradient accumulation, gradients are unscaled before the last micro-batch has added its own.

    The next micro-batch adds scaled gradients to unscaled ones. PyTorch raises "unscale_() has already been called on
    this optimizer since the last update()".

    Wrong:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target) / 4
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target) / 4
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    for event, first, before in unscaled_again(run):
        if accumulates(run, first, before):
            call = f"{scaler_of(run, event)}.unscale_({optimizer_of(run, event)})"
            yield Finding(
                f"{call} was called for each micro-batch in step {first.step}: the second call was refused, for the "
                "next "
                "micro-batch had added scaled gradients to unscaled ones.",
                (first, event),
                {"loss scale": first.scale},
                Fix(
                    first,
                    say=f"Call {call} once, after the last micro-batch, just before clipping and the step.",
                ),
            )
            return


@rule(
    "update-each-micro-batch",
    Severity.WRONG,
    title="update() for each micro-batch",
    explains=("unscale-each-micro-batch", "update-before-step", "update-missing", "scale-grows-too-fast"),
)
def update_each_micro_batch(run: Run) -> Iterator[Finding]:
    """The loss scale may change in the middle of a window, whose micro-batches are then scaled differently.

    The sum is divided by the last scale only. Without unscale_ or a step before it PyTorch raises "No inf checks were
    recorded prior to update".

    Wrong:
        for index, (x, y) in enumerate(batches, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if index % 4 == 0:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()

    Wrong, in silence:
        for index, (x, y) in enumerate(batches, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            scaler.update(2.0 ** (10 + index % 2))
            if index % 4 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    Right:
        for index, (x, y) in enumerate(batches, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if index % 4 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """
    for update, before in waiting_updates(run):
        if meant(run, update, before)[0] is Meant.AFTER_WINDOW:
            scaler = scaler_of(run, update)
            yield Finding(
                f"{scaler}.update() was called in step {update.step} after a micro-batch, before {scaler}.step(...): "
                "no "
                "gradients had been looked at, and it was refused.",
                (update,),
                fix=_with_the_step(update, scaler),
            )
            return
    found = list(_updated_between(run))
    if found:
        loss, update, step = found[0]
        scaler = scaler_of(run, update)
        early, late = number(update.before), number(loss.scale)
        yield Finding(
            f"{scaler}.update() was called between the micro-batches of step "
            f"{step.step}{again([s for _, _, s in found])}: "
            + (
                f"the first was scaled by {in_words(early)}, a later one by {in_words(late)}, and the sum divided by "
                f"{in_words(step.scale)}."
                if early != late
                else "gradients that were unscaled and gradients that were not are added up."
            ),
            tuple(event for one in found for event in (one[1], one[0], one[2])),
            {"scale of the first": update.before, "of the next": loss.scale, "divided by": step.scale},
            _with_the_step(update, scaler),
        )


@rule(
    "zero-grad-each-micro-batch",
    Severity.WRONG,
    title="zero_grad() for each micro-batch",
    explains=("window-left-over", "last-window-short"),
)
def zero_grad_each_micro_batch(run: Run) -> Iterator[Finding]:
    """Gradients are to be accumulated, and are zeroed before each micro-batch: a step uses the last one only.

    Wrong:
        for index, (x, y) in enumerate(batches, 1):
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if index % 4 == 0:
                scaler.step(optimizer)
                scaler.update()

    Wrong, in FP32:
        for index, (x, y) in enumerate(batches, 1):
            optimizer.zero_grad()
            (loss_fn(model(x), y) / 2).backward()
            if index % 2 == 0:
                optimizer.step()

    Right:
        for index, (x, y) in enumerate(batches, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if index % 4 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    Right, a batch that is left out:
        for index, (x, y) in enumerate(batches, 1):
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            if index == 3:
                continue
            optimizer.step()
    """
    for optimizer in range(len(run.optimizers)):
        every = windows(run, optimizer)
        lost = [(window.step, _thrown_away(window.events, optimizer)) for window in every]
        sizes = {len(passes) for _, passes in lost}
        if len(sizes) != 1 or 0 in sizes or (len(every) < 2 and sizes < {3}):
            continue
        step, passes = lost[0]
        if _kept_elsewhere(run, optimizer, step):
            continue
        zero = next(e for e in of(ZeroGrad, every[0].events) if e.number > passes[0].number)
        size = len(passes) + 1
        yield Finding(
            f"zero_grad() was called between the {size} micro-batches of step "
            f"{step.step}{again([s for s, _ in lost])}: of "
            f"{size} backward passes only the last was used.",
            (zero, *(each for each, _ in lost)),
            {"backward passes for a step": size, "of them used": 1},
            Fix(
                zero,
                say="Call zero_grad() once in a window: after the step, or before its first micro-batch.",
            ),
        )


@rule(
    "zero-grad-each-window",
    Severity.WRONG,
    title="a step for each micro-batch, and zero_grad() for several",
    explains=("zero-grad-skipped",),
)
def zero_grad_each_window(run: Run) -> Iterator[Finding]:
    """Steps are taken for each micro-batch, while gradients are zeroed for each window: they are used again and again.

    Wrong:
        for index, (x, y) in enumerate(batches, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if index % 4 == 0:
                optimizer.zero_grad()

    Right:
        for index, (x, y) in enumerate(batches, 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if index % 4 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """
    for optimizer in range(len(run.optimizers)):
        reused = list(_stepped_on_used(run, optimizer))
        zeros = [e for e in run.of(ZeroGrad) if optimizer in e.optimizers and _had(e, optimizer)]
        if zeros and len(reused) > 1 and not all(before.skipped.value for before, _ in reused):
            first, second = reused[0]
            called = name(run, second, "optimizer", optimizer)
            yield Finding(
                f"{called} stepped in step {second.step} with gradients that step {first.step} had used already"
                f"{again([s for _, s in reused])}: there is a step after each backward pass, and zero_grad() only "
                "now and "
                "then.",
                tuple(event for pair in reused for event in reversed(pair)),
                {"steps": len({s.step for s in run.of(Stepped)}), "of them with used gradients": len(reused)},
                Fix(
                    second,
                    say="Step and zero together: both after each micro-batch, or both at the end of a window.",
                ),
            )


def _with_the_step(update: Updated, scaler: str) -> Fix:
    return Fix(update, say=f"Call {scaler}.update() once for each window, just after {scaler}.step(...).")


def _updated_between(run: Run) -> Iterator[tuple[Backward, Updated, Stepped]]:
    """Yield each window with an update between two of its backward passes: the later pass, the update and the step."""
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised or not live(run, event.scaler):
            continue
        events = after_zero(past.since(Stepped, event.optimizer) or [], event.optimizer)
        passes = [e for e in backwards(events, event.optimizer) if scaled(run, e)]
        between = [
            e for e in of(Updated, events)
            if e.scaler == event.scaler and not e.raised and passes and passes[0].number < e.number < passes[-1].number
        ]  # fmt: skip
        same = len({line_of(e) for e in passes}) == 1
        if between and same and _mixes(events, passes, between[0], event.optimizer):
            yield next(e for e in passes if e.number > between[0].number), between[0], event


def _mixes(events: Sequence[Event], passes: Sequence[Backward], update: Updated, optimizer: int) -> bool:
    """Whether gradients of different scales were added up: the scale changed, or some were unscaled before."""
    unscaled = [e for e in of(Unscaled, events, optimizer) if e.number < update.number and not e.raised]
    return bool(unscaled) or len({number(each.scale) for each in passes}) > 1


def _thrown_away(events: Sequence[Event], optimizer: int) -> list[Backward]:
    """Return the backward passes whose gradients were zeroed before the step, if the same line made those it used.

    Nothing, where a step of another optimizer came between, or where a line is not known.
    """
    passes = list(backwards(events, optimizer))
    used = set(map(id, backwards(after_zero(events, optimizer), optimizer)))
    lost = [each for each in passes if id(each) not in used]
    if len(used) != 1 or len({line_of(each) for each in passes}) != 1 or line_of(passes[0]) is None:
        return []
    if of(Stepped, [e for e in events if lost and e.number > lost[0].number]):
        return []
    forwards = [e for e in of(Forward, events) if e.grad and not e.recomputed]
    return lost if len(forwards) >= len(passes) else []


def _kept_elsewhere(run: Run, optimizer: int, step: Stepped) -> bool:
    """Whether the loop adds gradients up itself: to a buffer of its own, or to what it sets `.grad` to in the end."""
    kept = (e.values.get("optimizer") for e in run.of(Noticed) if e.what == "gradients kept")
    return optimizer in kept or replaces_gradients(step)


def _stepped_on_used(run: Run, optimizer: int) -> Iterator[tuple[Stepped, Stepped]]:
    """Yield each step with gradients that the one before had used, and that one first."""
    for event, past in walk(run):
        if isinstance(event, Stepped) and event.optimizer == optimizer and not event.closure:
            before = past.last(Stepped, optimizer)
            if before is None or before.state in EMPTY or before.closure:
                continue
            since = past.since(Stepped, optimizer)
            passes = list(backwards(since, optimizer)) if since else []
            zeros = [e for e in of(ZeroGrad, since) if optimizer in e.optimizers]
            if passes and not zeros and passes[0].before[optimizer] not in EMPTY:
                yield before, event


def _had(event: ZeroGrad, optimizer: int) -> bool:
    return event.before[event.optimizers.index(optimizer)] not in EMPTY
