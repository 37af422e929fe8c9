"""What the loop keeps count of: sums and counters that a skipped step spoils."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import finite, notices
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import counted, in_words


@rule("sum-poisoned", Severity.WRONG, title="a sum spoilt by one skipped step")
def sum_poisoned(run: Run) -> Iterator[Finding]:
    """A running sum took in the NaN or infinity of a step that was skipped, and stays so for ever.

    The scaler keeps the weights from such a step, nobody keeps the mean of the epoch from it.

    Wrong:
        total = 0.0
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += norm.item()

    Wrong, with a tensor:
        total = torch.zeros(())
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += norm

    Right:
        total, best = 0.0, math.inf
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            norm = norm.item()
            if math.isfinite(norm):
                total += norm
            best = min(best, loss.item())
    """
    found = [
        event
        for event in notices(run, "sum")
        if not finite([event.values["after"]]) and not finite([event.values["later"]])
    ]
    if found:
        event = found[0]
        name, step = event.values["name"], event.values["step"]
        yield Finding(
            f"`{name}` became {in_words(event.values['after'])} in step {step}, which was skipped, and still "
            f"is: it takes "
            "in what the scaler kept from the weights.",
            tuple(found),
            {"variable": name, "skipped step": step, "after it": event.values["after"]},
            Fix(event, say=f"Add to {name} only what is finite: if math.isfinite(value): {name} += value."),
        )


@rule("counter-on-skip", Severity.NOTE, title="a counter of updates counts skipped steps")
def counter_on_skip(run: Run) -> Iterator[Finding]:
    """A variable whose name says that it counts updates is counted up in steps that were skipped, too.

    What hangs on it, a warm-up, a schedule, the time to save, comes too early.

    Wrong:
        global_step = 0
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            global_step += 1

    Right:
        global_step, iterations = 0, 0
        for x, y in batches_overflow:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            iterations += 1
            if scaler.get_scale() >= before:
                global_step += 1
    """
    found = notices(run, "counter")
    if found:
        event = found[0]
        name, step, value = (event.values[each] for each in ("name", "step", "value"))
        more = f", as in {counted(len(found) - 1, 'other skipped step')}" if len(found) > 1 else ""
        yield Finding(
            f"`{name}` went to {value} in step {step}{more}, though the step was skipped: the weights had fewer "
            f"updates.",
            tuple(found),
            {"variable": name, "skipped step": step},
            Fix(event, say=f"Count only steps that were made: if the scale did not fall, {name} += 1."),
        )
