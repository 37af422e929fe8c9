"""zero_grad: once for each step, after the step and before the next backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import Backward, Event, Gradients, Noticed, Stepped, ZeroGrad
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.order import EMPTY, again, backwards, of, optimizer_of, place, walk
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import counted

_NEVER_FINITE = ("scale-collapse", "every-step-skipped", "scale-stuck", "one-optimizer-overflows")


@rule(
    "zero-grad-missing",
    Severity.WRONG,
    title="zero_grad() is missing",
    explains=(
        *_NEVER_FINITE,
        "loss-not-finite",
        "gradients-of-another-loss",
        "window-left-over",
        "last-window-short",
    ),
)
def zero_grad_missing(run: Run) -> Iterator[Finding]:
    """The gradients of a step are still there in the next one: each step uses the sum of all before.

    With a scaler the first overflow is the end: infinite plus anything is infinite, every later step is skipped, and
    the scale sinks to 0, while the loss stays finite and does not move.

    Wrong:
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, in FP32:
        loss_fn(model(x), y).backward()
        optimizer.step()

    Wrong, for one of two:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, by hand:
        for p in model.parameters():
            p.grad = None
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for optimizer in range(len(run.optimizers)):
        kept = [(step, loss, zeroed) for step, loss, zeroed in _used_again(run, optimizer) if not zeroed]
        if kept and not _ever_zeroed(run, optimizer) and not _kept_by_hand(run, optimizer, len(kept)):
            step, loss, _ = kept[0]
            called = optimizer_of(run, step)
            skips = [s for s, _, _ in kept if s.skipped.value]
            more = f" After the overflow of step {skips[0].step} they are infinite for good." if skips else ""
            yield Finding(
                f"{called}.zero_grad() is never called: the gradients of step {step.step} were still there in the "
                "next, "
                f"and in {counted(len(kept), 'step')} the backward pass added to what a step had used.{more}",
                tuple(event for one in kept for event in (one[1], one[0])),
                fix=Fix(
                    loss,
                    insert=(f"{place(run, 'optimizer', optimizer)}.zero_grad()",),
                    say=f"Call {called}.zero_grad() in every step, before the backward pass.",
                ),
            )


@rule(
    "zero-grad-skipped",
    Severity.WRONG,
    title="no zero_grad() after a skipped step",
    explains=(*_NEVER_FINITE, "loss-not-finite"),
)
def zero_grad_skipped(run: Run) -> Iterator[Finding]:
    """A step was skipped because of infinite gradients, and these are not zeroed: they never become finite again.

    Infinite plus anything is infinite. Every later step is skipped, and the scale sinks to 0, while the loss stays
    finite and does not move. It happens where zero_grad() stands at the end of the loop, and something turns back
    before.

    Wrong:
        for x, y in batches_overflow:
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() < before:
                continue
            optimizer.zero_grad()

    Right:
        for x, y in batches_overflow:
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < before:
                continue
    """
    for optimizer in range(len(run.optimizers)):
        if not _ever_zeroed(run, optimizer):
            continue  # see zero-grad-missing
        kept = [
            (step, loss)
            for step, loss, zeroed in _used_again(run, optimizer)
            if not zeroed and step.skipped.value
        ]
        if kept and not [
            s for s, _, zeroed in _used_again(run, optimizer) if not zeroed and not s.skipped.value
        ]:
            step, loss = kept[0]
            called = optimizer_of(run, step)
            yield Finding(
                f"Step {step.step} was skipped, its gradients infinite, and {called}.zero_grad() was not called "
                "before the "
                f"next backward pass: what is added to them stays infinite{_skipped_since(run, step)}.",
                tuple(event for each in kept for event in (each[1], each[0])),
                fix=Fix(
                    loss,
                    insert=(f"{place(run, 'optimizer', optimizer)}.zero_grad()",),
                    say=f"Call {called}.zero_grad() before each backward pass, also after a step that was skipped.",
                ),
            )


@rule(
    "zero-grad-before-step",
    Severity.WRONG,
    title="zero_grad() between backward pass and step",
    explains=("no-gradients", "clip-of-nothing", "update-without-step"),
)
def zero_grad_before_step(run: Run) -> Iterator[Finding]:
    """The gradients are thrown away before the step uses them.

    With a scaler PyTorch raises "No inf checks were recorded for this optimizer". Without one, or with
    set_to_none=False, nothing is said: SGD does not move, and AdamW only shrinks the weights by its decay.

    Wrong:
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()

    Wrong, in silence:
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        optimizer.zero_grad(set_to_none=False)
        scaler.step(optimizer)
        scaler.update()

    Wrong, in FP32:
        loss_fn(model(x), y).backward()
        model.zero_grad()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found: list[tuple[ZeroGrad, Stepped]] = []
    for event, past in walk(run):
        if isinstance(event, Stepped) and event.state in EMPTY and not event.closure:
            zero = _last_zero(past.since(Stepped, event.optimizer), event.optimizer)
            if zero is not None:
                found.append((zero, event))
    if found:
        zero, step = found[0]
        left = "set them to zero" if step.state is Gradients.ZERO else "took them away"
        result = "was refused" if step.raised else "had nothing to step with"
        yield Finding(
            f"zero_grad() {left} between the backward pass and the step of step {step.step}"
            f"{again([each[1] for each in found])}: {optimizer_of(run, step)} {result}.",
            tuple(event for each in found for event in each),
            fix=Fix(
                zero,
                remove=("{line}",) if zero.where is not None else (),
                also=(Fix(step, insert=("{moved}",), place="after"),) if zero.where is not None else (),
                say="Zero the gradients after the step, or before the backward pass.",
            ),
        )


@rule("zero-grad-in-part", Severity.WRONG, title="zero_grad() leaves some gradients in place")
def zero_grad_in_part(run: Run) -> Iterator[Finding]:
    """`model.zero_grad()` reaches the model's parameters only, and the optimizer has more than those.

    The gradients of the rest, say of a loss function with weights of its own, add up from step to step.

    Wrong:
        optimizer = torch.optim.SGD([*model.parameters(), *model_b.parameters()], lr=0.1)
        for x, y in batches:
            model.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        optimizer = torch.optim.SGD([*model.parameters(), *model_b.parameters()], lr=0.1)
        for x, y in batches:
            model.zero_grad()
            model_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    found: list[tuple[ZeroGrad, Stepped]] = []
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised or not past.happened(Stepped, event.optimizer):
            continue
        since = past.since(Stepped, event.optimizer)
        zeros = [e for e in of(ZeroGrad, since) if event.optimizer in e.optimizers]
        if len(zeros) == 1 and not zeros[0].all_of and event.with_gradient == event.parameters:
            found.append((zeros[0], event))
    if found:
        zero, step = found[0]
        called = optimizer_of(run, step)
        yield Finding(
            f"zero_grad() of the model reached only a part of the {counted(step.parameters, 'parameter')} that "
            f"{called} "
            f"steps in step {step.step}{again([each[1] for each in found])}: the gradients of the others add up.",
            tuple(event for each in found for event in each),
            fix=Fix(
                zero,
                remove=("{line}",),
                insert=(f"{place(run, 'optimizer', step.optimizer)}.zero_grad()",),
                say=f"Call {called}.zero_grad(): it reaches all that the optimizer steps.",
            ),
        )


def _used_again(run: Run, optimizer: int) -> Iterator[tuple[Stepped, Backward, bool]]:
    """Yield each step that had gradients, the next backward pass that counts for a step, and whether they were zeroed.

    Judged when the next step is taken: a backward pass of another loss, whose gradients are zeroed, does no harm.
    """
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.optimizer != optimizer or event.closure:
            continue
        before = past.last(Stepped, optimizer)
        passes = list(backwards(past.since(Stepped, optimizer) or [], optimizer))
        if before is None or before.state in EMPTY or not passes or before.closure:
            continue
        zeros = [e for e in of(ZeroGrad, past.since(Stepped, optimizer)) if optimizer in e.optimizers]
        yield before, passes[0], bool(zeros) or passes[0].before[optimizer] in EMPTY


def _ever_zeroed(run: Run, optimizer: int) -> bool:
    return any(
        optimizer in e.optimizers and e.before[e.optimizers.index(optimizer)] not in EMPTY
        for e in run.of(ZeroGrad)
    )


def _kept_by_hand(run: Run, optimizer: int, times: int) -> bool:
    """Whether the loop wrote to the gradients between most steps and the next backward passes: `p.grad.mul_(0.9)`."""
    written = [e for e in run.of(Noticed) if e.what == "rewritten" and e.values.get("optimizer") == optimizer]
    return 2 * len(written) > times


def _last_zero(events: list[Event] | None, optimizer: int) -> ZeroGrad | None:
    """Return the zero_grad that came after the last backward pass and took its gradients away."""
    zero: ZeroGrad | None = None
    waiting = False
    for event in events or ():
        if isinstance(event, Backward) and optimizer in event.touched:
            zero, waiting = None, True
        # By hand: it may be a product with 0, of a norm that was infinite.
        if waiting and isinstance(event, ZeroGrad) and optimizer in event.optimizers and event.by != "hand":
            zero, waiting = event, False
    return zero


def _skipped_since(run: Run, step: Stepped) -> str:
    steps = {number for number in run.skips if number > step.step}
    return (
        f", and {counted(len(steps), 'more step')} {'was' if len(steps) == 1 else 'were'} skipped"
        if steps
        else ""
    )
