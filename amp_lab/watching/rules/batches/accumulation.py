"""Gradient accumulation: several backward passes, of micro-batches, for one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Forward,
    GradientsChanged,
    Stepped,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import changes_gradients, whole_call
from amp_lab.watching.rules.order import (
    Window,
    after_zero,
    again,
    backwards,
    line_of,
    of,
    walk,
    windows,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words, listed


@rule("not-divided", Severity.RISK, title="micro-batches summed, and nothing divided")
def not_divided(run: Run) -> Iterator[Finding]:
    """The gradients of N micro-batches add up, and no loss was divided by N: the step is N times that of their mean.

    Each loss is a mean over its own micro-batch. With SGD it is a learning rate N times as high; clipping cuts N times
    as much. (If the sum is what you mean, over several tasks, say, or the learning rate
    allows for it, nothing is wrong.)

    Wrong:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, in FP32:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            loss = loss_fn(model(part), target)
            loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target) / 4
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, a sum divided by all:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(4), y.chunk(4)):
            with autocast(device_type, dtype=torch.float16):
                loss = F.mse_loss(model(part), target, reduction="sum") / len(x)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, two losses:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x.flip(0)), y.flip(0))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for optimizer in range(len(run.optimizers)):
        found = [
            window for window in windows(run, optimizer) if _same_line(window.used) and _means(window.used)
        ]
        found = [window for window in found if _forwards(window) >= len(window.used)]
        if found and not _divided_by_hand(run, optimizer, {len(w.used) for w in found}, found[0].step):
            window = found[0]
            size = len(window.used)
            loss = whole_call(window.used[0], "backward")
            yield Finding(
                f"The gradients of {size} micro-batches were added up for step {window.step.step}"
                f"{again([each.step for each in found])}, each of a loss that is a mean of its own: the sum is "
                f"{size} times "
                "the gradient of their mean.",
                (window.used[0], *(each.step for each in found)),
                {"backward passes of one line": size, "loss divided by": 1},
                Fix(
                    window.used[0],
                    say=f"Divide each loss by {size}, the number of micro-batches, before "
                    f"{loss[0] if loss else 'backward()'}, unless the learning rate allows for the sum.",
                ),
            )


@rule("last-window-short", Severity.WRONG, title="the last window is shorter, and divided by the same number")
def last_window_short(run: Run) -> Iterator[Finding]:
    """Fewer micro-batches than usual are left for a step, and their losses are divided by the usual number.

    The gradient of that step is too small by the share of those that are missing.

    Wrong:
        for index, (x, y) in enumerate(batches[:6], 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if index % 4 == 0 or index == 6:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    Right:
        for index, (x, y) in enumerate(batches[:6], 1):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) / (4 if index <= 4 else 2)
            scaler.scale(loss).backward()
            if index % 4 == 0 or index == 6:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """
    for optimizer in range(len(run.optimizers)):
        every = [window for window in windows(run, optimizer) if _same_line(window.used, least=1)]
        size = _usual(every)
        if size is None:
            continue
        short = [
            window for window in every
            if len(window.used) < size and _divisor(window.used) == size and _forwards(window) == len(window.used)
        ]  # fmt: skip
        if short:
            window = short[0]
            left = len(window.used)
            yield Finding(
                f"{_micro(left)} {'was' if left == 1 else 'were'} left for step "
                f"{window.step.step}{again([each.step for each in short])}, and each loss was divided by {size}: its "
                "gradient is "
                f"{in_words(left / size)} of what it should be.",
                (window.used[0], *(each.step for each in short)),
                {"micro-batches": left, "loss divided by": size},
                Fix(window.used[0], say="Divide by the number of micro-batches that this step really has."),
            )


@rule("window-left-over", Severity.WRONG, title="micro-batches left over without a step")
def window_left_over(run: Run) -> Iterator[Finding]:
    """The last micro-batches of an epoch reach no step: they are thrown away, or leak into the next epoch.

    Wrong, they leak:
        for epoch in range(epochs):
            for index, (x, y) in enumerate(batches[:6], 1):
                with autocast(device_type, dtype=torch.float16):
                    loss = loss_fn(model(x), y) / 4
                scaler.scale(loss).backward()
                if index % 4 == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()

    Wrong, they are lost:
        for epoch in range(epochs):
            optimizer.zero_grad()
            for index, (x, y) in enumerate(batches[:6], 1):
                with autocast(device_type, dtype=torch.float16):
                    loss = loss_fn(model(x), y) / 4
                scaler.scale(loss).backward()
                if index % 4 == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()

    Right:
        for epoch in range(epochs):
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
        every = [window for window in windows(run, optimizer) if _same_line(window.used, least=1)]
        size = _usual(every)
        if size is None:
            continue
        leaks = [w for w in every if size < len(w.used) < 2 * size and _divisor(w.used) == size]
        lost = list(_lost(run, optimizer, size))
        if leaks:
            window = leaks[0]
            more = len(window.used) - size
            yield Finding(
                f"{len(window.used)} micro-batches came together in step "
                f"{window.step.step}{again([w.step for w in leaks])}, "
                f"each divided by {size}: {more} were left over from before, and no step had used them.",
                (window.used[0], *(each.step for each in leaks)),
                {"micro-batches": len(window.used), "loss divided by": size},
                _step_at_the_end(window.used[0]),
            )
        elif lost:
            passes, _ = lost[0]
            yield Finding(
                f"The gradients of {_micro(len(passes))}, each divided by {size}, were zeroed after step "
                f"{passes[0].step - 1}, and no step had used them.",
                (passes[0], *(zero for _, zero in lost)),
                {"micro-batches": len(passes), "loss divided by": size},
                _step_at_the_end(passes[0]),
            )


@rule("unequal-micro-batches", Severity.RISK, title="micro-batches of unequal size count the same")
def unequal_micro_batches(run: Run) -> Iterator[Finding]:
    """Each loss is a mean over its micro-batch, and all are divided by the same number, whatever they hold.

    A row (or token) in a small micro-batch then weighs more than one in a large one. Sum each loss and divide by how
    many there are in the whole window. A single short micro-batch, as at the end of an epoch, is let pass.

    Wrong:
        optimizer.zero_grad()
        for part, target in zip(x.split([4, 12]), y.split([4, 12])):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(part), target) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        for part, target in zip(x.split([4, 12]), y.split([4, 12])):
            with autocast(device_type, dtype=torch.float16):
                loss = F.mse_loss(model(part), target, reduction="sum") / len(x)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for optimizer in range(len(run.optimizers)):
        found: list[tuple[Window, list[int]]] = []
        for window in windows(run, optimizer):
            sizes = _sizes(window)
            weighed = _same_line(window.used) and _divisor(window.used) == len(window.used) == len(sizes)
            if weighed and len(set(sizes)) > 1:
                found.append((window, sizes))
        if len(found) > 1:
            window, sizes = found[0]
            yield Finding(
                f"Micro-batches of {listed([in_words(each) for each in sizes])} numbers each counted 1/{len(sizes)} "
                "in step "
                f"{window.step.step}{again([w.step for w, _ in found])}: each loss was divided by {len(sizes)}, "
                "whatever its "
                "micro-batch holds.",
                (window.used[0], *(w.step for w, _ in found)),
                {"numbers in the output of each": tuple(sizes), "loss divided by": len(sizes)},
                Fix(
                    window.used[0],
                    say="Take the sum of the losses (reduction='sum'), and divide by the number of targets in the "
                    "whole window.",
                ),
            )


def _same_line(passes: Sequence[Backward], least: int = 2) -> bool:
    """Whether there are several backward passes, all of the same line of code: micro-batches."""
    lines = {line_of(each) for each in passes}
    return len(passes) >= least and len(lines) == 1 and None not in lines


def _means(passes: Sequence[Backward]) -> bool:
    """Whether every loss is a mean, for certain, and none was divided."""
    return all(each.averaged and each.divided_by is None for each in passes)


def _divisor(passes: Sequence[Backward]) -> int | None:
    """Return the whole number that all losses were divided by."""
    found = {each.divided_by for each in passes}
    divisor = found.pop() if len(found) == 1 else None
    return int(divisor) if divisor is not None and divisor >= 2 and divisor % 1 == 0 else None


def _usual(every: Sequence[Window]) -> int | None:
    """Return how many micro-batches most windows have, if their losses are divided by that number."""
    sizes = Counter(len(window.used) for window in every if _divisor(window.used) == len(window.used))
    return sizes.most_common(1)[0][0] if sizes else None


def _forwards(window: Window) -> int:
    """How many forward passes there were since the first one that counts: recomputed ones do not."""
    events = after_zero(window.events, window.step.optimizer)
    calls = [e for e in of(Forward, events) if e.grad and not e.recomputed]
    return max(Counter(e.model for e in calls).values(), default=0)


def _sizes(window: Window) -> list[int]:
    """Return how many numbers came out of the model before each backward pass that counts."""
    sizes: list[int] = []
    latest: Forward | None = None
    for event in after_zero(window.events, window.step.optimizer):
        if isinstance(event, Forward) and event.grad and not event.recomputed:
            latest = event
        if (
            isinstance(event, Backward)
            and window.step.optimizer in event.touched
            and latest
            and latest.outputs
        ):
            sizes.append(_numbers(latest.outputs[0][1]))
    return sizes


def _numbers(shape: tuple[int, ...]) -> int:
    numbers = 1
    for each in shape:
        numbers *= each
    return numbers


def _divided_by_hand(run: Run, optimizer: int, sizes: set[int], step: Stepped) -> bool:
    """Whether the gradients themselves were divided by the number of micro-batches, as far as can be seen."""
    factors = [
        e.factor.value for e in run.of(GradientsChanged) if e.optimizer == optimizer and e.factor is not None
    ]
    return any(factor * size == 1 for factor in factors for size in sizes) or changes_gradients(step)


def _lost(run: Run, optimizer: int, size: int) -> Iterator[tuple[list[Backward], ZeroGrad]]:
    """Yield micro-batches whose gradients were zeroed before they were as many as usual, and before any step."""
    for event, past in walk(run):
        if (
            not isinstance(event, ZeroGrad)
            or optimizer not in event.optimizers
            or not past.happened(Stepped, optimizer)
        ):
            continue
        since = after_zero(past.since(Stepped, optimizer) or [], optimizer)
        passes = list(backwards(since, optimizer))
        forwards = [e for e in of(Forward, since) if e.grad and not e.recomputed]
        if 0 < len(passes) < size and _divisor(passes) == size and len(forwards) == len(passes):
            yield passes, event


def _step_at_the_end(event: Event) -> Fix:
    return Fix(
        event,
        say="Take the step also at the last batch of an epoch, and divide there by the number of micro-batches it has.",
    )


def _micro(number: int) -> str:
    return f"{number} micro-batch{'' if number == 1 else 'es'}"
