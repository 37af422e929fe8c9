"""Several optimizers with one scaler: scale all, step each, update once at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_lab.watching.recording.events import Backward, Forward, Stepped, Updated, ZeroGrad
from amp_lab.watching.recording.run import Run
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
    place,
    scaled,
    scaler_of,
    times,
    walk,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import in_steps, steps_of
from amp_lab.watching.words import counted, in_words

_MANY = 8  # skipped steps: a scale of 2^16 has sunk to 2^8, so that this is no warming up


@rule(
    "update-between-optimizers",
    Severity.WRONG,
    title="update() between the steps of two optimizers",
    explains=("update-before-step", "two-scalers"),
)
def update_between_optimizers(run: Run) -> Iterator[Finding]:
    """The gradients of two optimizers were multiplied by one scale, and `update()` comes before the second has stepped.

    If the scale changes there, the second optimizer's gradients are divided by another number than they were multiplied
    by. If it was unscaled before, it is unscaled again.

    Wrong:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.step(optimizer_b)
        scaler.update()

    Right:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()

    Right, one after the other:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer_b)
        scaler.update()
    """
    found: list[tuple[Updated, Stepped, Backward]] = []
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised or not live(run, event.scaler):
            continue
        loss = past.last(Backward, event.optimizer)
        since = past.since(Backward, event.optimizer)
        updates = [e for e in of(Updated, since) if e.scaler == event.scaler and not e.raised]
        others = [
            e for e in of(Stepped, since) if e.scaler == event.scaler and e.optimizer != event.optimizer
        ]
        own = of(Stepped, since, event.optimizer)
        if loss is not None and loss.scaled_by == event.scaler and updates and others and not own:
            found.append((updates[0], event, loss))
    if found:
        changed = [each for each in found if number(each[2].scale) != number(each[1].scale)]
        update, step, loss = (changed or found)[0]
        scaler, called = scaler_of(run, update), optimizer_of(run, step)
        before, after = number(loss.scale), number(step.scale)
        what = (
            f"the scale changed there in {in_steps(steps_of(each[0] for each in changed))}, and in step {update.step} "
            f"the gradients of {called} were multiplied by {in_words(before)} and divided by {in_words(after)}, and "
            f"are {times(before / after)}"
            if changed
            else f"when the scale changes there, the gradients of {called} will be divided by another number than "
            "they were multiplied by"
        )
        yield Finding(
            f"{scaler}.update() was called before {scaler}.step({called}) in step {found[0][0].step}"
            f"{again([each[0] for each in found])}: {what}.",
            tuple(event for each in found for event in each[:2]),
            {"multiplied by": loss.scale, "divided by": step.scale},
            Fix(
                update,
                remove=("{line}",),
                say=f"Call {scaler}.update() once, after the last {scaler}.step(...).",
            ),
        )


@rule("optimizer-never-stepped", Severity.WRONG, title="an optimizer that never steps")
def optimizer_never_stepped(run: Run) -> Iterator[Finding]:
    """An optimizer's parameters get gradients again and again, and no step ever uses them.

    Wrong:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, of one:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()

    Right:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()

    Right, in turns:
        for index, (x, y) in enumerate(batches):
            now, net = (optimizer, model) if index % 5 else (optimizer_b, model_b)
            now.zero_grad()
            loss_fn(net(x), y).backward()
            now.step()
    """
    stepped = {e.optimizer for e in run.of(Stepped)}
    if any(getattr(e, "raised", False) for e in run.events):
        return  # the loop broke before it came to a step: see why it broke
    for optimizer in range(len(run.optimizers)):
        passes = _lost_again_and_again(run, optimizer)
        least = 3 if stepped else 5
        if optimizer not in stepped and len(passes) >= least and not _moved_by_hand(run, optimizer, passes):
            last = passes[-1]
            called = name(run, last, "optimizer", optimizer)
            yield Finding(
                f"{called} has not stepped in {counted(run.steps, 'step')}, while {len(passes)} backward passes gave "
                "gradients "
                "to its parameters, which were zeroed unused.",
                tuple(passes),
                {"parameters": run.optimizers[optimizer].parameters},
                Fix(last, say=_step_it(run, passes[0], called)),
            )


@rule(
    "gradients-of-another-loss",
    Severity.WRONG,
    title="a step with gradients that another model's loss left behind",
)
def gradients_of_another_loss(run: Run) -> Iterator[Finding]:
    """A loss that was meant for one model also leaves gradients in another, and these are used in that one's step.

    In a GAN the generator's loss goes back through the critic. The critic's gradients must be zeroed after that, before
    its own backward pass; to zero them right after its own step comes too early.

    Wrong:
        for x, y in batches:
            with autocast(device_type, dtype=torch.float16):
                critic_loss = loss_fn(model_b(x), y)
            scaler.scale(critic_loss).backward()
            scaler.step(optimizer_b)
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = -model_b(model(x).expand(-1, 8)).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()

    Right:
        for x, y in batches:
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                critic_loss = loss_fn(model_b(x), y)
            scaler.scale(critic_loss).backward()
            scaler.step(optimizer_b)
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = -model_b(model(x).expand(-1, 8)).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    found: list[tuple[Stepped, Backward, Stepped]] = []
    for event, past in walk(run):
        if not isinstance(event, Stepped) or event.raised:
            continue
        events = after_zero(past.since(Stepped, event.optimizer) or [], event.optimizer)
        passes = list(backwards(events, event.optimizer))
        for early in passes:
            later = [e for e in passes if e.number > early.number and line_of(e) != line_of(early)]
            others = [
                e for e in of(Stepped, events)
                if e.optimizer != event.optimizer and e.optimizer in early.touched
                and later and early.number < e.number < later[0].number
            ]  # fmt: skip
            if others:
                found.append((event, early, others[0]))
                break
    if found:
        step, _, other = found[0]
        called, meant_for = optimizer_of(run, step), optimizer_of(run, other)
        yield Finding(
            f"{called} stepped in step {step.step}{again([each[0] for each in found])} with gradients that the loss of "
            f"{meant_for} had left in its parameters, added to its own.",
            tuple(event for each in found for event in (each[1], each[0])),
            fix=Fix(
                list(backwards([e for e in run.events if e.number < step.number], step.optimizer))[-1],
                insert=(f"{place(run, 'optimizer', step.optimizer)}.zero_grad()",),
                say=f"Call {called}.zero_grad() just before its own backward pass.",
            ),
        )


@rule("shared-parameters", Severity.WRONG, title="the same parameters in two optimizers")
def shared_parameters(run: Run) -> Iterator[Finding]:
    """Two optimizers hold the same parameters and step both: with a scaler their gradients are unscaled twice.

    Wrong:
        optimizer_b = torch.optim.SGD([*model_b.parameters(), *model.parameters()], lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.step(optimizer_b)
            scaler.update()

    Right:
        optimizer_b = torch.optim.SGD(model_b.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y) + loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.step(optimizer_b)
            scaler.update()
    """
    sharing = [index for index, facts in enumerate(run.optimizers) if facts.shared]
    found: list[tuple[Stepped, Stepped]] = []
    for event, past in walk(run):
        if isinstance(event, Stepped) and event.optimizer in sharing and event.state not in EMPTY:
            since = past.since(Stepped, event.optimizer) or []
            others = [
                e for e in of(Stepped, since) if e.optimizer in sharing and e.optimizer != event.optimizer
            ]
            if others and not any(
                isinstance(e, Backward | ZeroGrad) for e in since if e.number > others[-1].number
            ):
                found.append((event, others[-1]))
    if found:
        second, first = found[0]
        shared = min(run.optimizers[first.optimizer].shared, run.optimizers[second.optimizer].shared)
        both = live(run, first.scaler) and live(run, second.scaler)
        yield Finding(
            f"{optimizer_of(run, first)} and {optimizer_of(run, second)} share {counted(shared, 'parameter')}, and "
            "both "
            f"stepped in step {second.step}{again([each[0] for each in found])}: "
            + (
                f"their gradients were divided by the loss scale, {in_words(second.scale)}, twice."
                if both
                else "they were moved twice with the same gradients."
            ),
            tuple(event for each in found for event in each),
            {"parameters in both": shared, "loss scale": second.scale},
            Fix(second, say="Give each parameter to one optimizer only."),
        )


@rule(
    "one-optimizer-overflows",
    Severity.RISK,
    title="one optimizer is skipped again and again, another walks on",
)
def one_optimizer_overflows(run: Run) -> Iterator[Finding]:
    """With one scaler for two optimizers, each is skipped by its own gradients, and both pay with the scale.

    The models drift apart in how often they step, and the scale sinks for both. Look for what overflows in the one
    model, or give each its own scaler.

    Wrong:
        for x, y in batches_many[:16]:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
                other = loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler.scale(other).backward()
            model_b.weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.step(optimizer_b)
            scaler.update()

    Right:
        for x, y in batches_many[:16]:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
                other = loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler.scale(other).backward()
            scaler.step(optimizer)
            scaler.step(optimizer_b)
            scaler.update()
    """
    steps = [e for e in run.of(Stepped) if live(run, e.scaler) and not e.raised]
    for optimizer in sorted({e.optimizer for e in steps}):
        own = [e for e in steps if e.optimizer == optimizer]
        skipped = [e for e in own if e.skipped.value]
        others = [e for e in steps if e.optimizer != optimizer and e.step in {s.step for s in skipped}]
        went = [e for e in others if not e.skipped.value and e.scaler == own[0].scaler]
        if len(skipped) >= _MANY and 2 * len(skipped) >= len(own) and len(went) >= _MANY:
            other = optimizer_of(run, went[0])
            yield Finding(
                f"{optimizer_of(run, own[0])} was skipped in {len(skipped)} of {counted(len(own), 'step')}, because "
                "its gradients "
                f"overflowed, while {other} stepped in {len(went)} of these; the loss scale of both went from "
                f"{in_words(skipped[0].scale)} to {in_words(skipped[-1].scale)}.",
                tuple(skipped),
                {
                    "skipped": len(skipped),
                    "scale at the first": skipped[0].scale,
                    "at the last": skipped[-1].scale,
                },
                Fix(
                    skipped[0],
                    say="Look for what overflows in its model at every scale, or give it a scaler of its own.",
                ),
            )


def _lost_again_and_again(run: Run, optimizer: int) -> list[Backward]:
    """Return backward passes whose gradients an optimizer's zero_grad took away; one for each zero_grad."""
    lost: list[Backward] = []
    waiting: Backward | None = None
    for event in run.events:
        if isinstance(event, Backward) and optimizer in event.touched:
            waiting = event
        if isinstance(event, ZeroGrad) and optimizer in event.optimizers and waiting is not None:
            lost.append(waiting)
            waiting = None
    return lost


def _moved_by_hand(run: Run, optimizer: int, passes: Sequence[Backward]) -> bool:
    """Whether the loop updates the weights itself, `p.sub_(0.1 * p.grad)`: a model of the optimizer's is another in
    each forward pass."""
    for model in run.optimizers[optimizer].models:
        versions = {
            e.weights for e in run.of(Forward) if e.model == model and e.grad and e.weights is not None
        }
        if len(versions) >= len(passes):
            return True
    return False


def _step_it(run: Run, loss: Backward, called: str) -> str:
    by_scaler = f"{name(run, loss, 'scaler', loss.scaled_by or 0)}.step({called})"
    return f"Call {by_scaler if scaled(run, loss) else f'{called}.step()'} after the backward pass."
