"""Backward passes: one for each loss, through a graph that reaches the weights."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import Backward, Forward, Raised, Scaled, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.order import Past, after_zero, again, line_of, walk
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule


@rule(
    "backward-twice", Severity.WRONG, title="backward() twice for one loss", explains=("unscaled-backward",)
)
def backward_twice(run: Run) -> Iterator[Finding]:
    """The same loss is sent backward twice, so that its gradients are added to themselves.

    PyTorch raises "Trying to backward through the graph a second time", unless somebody has quieted it with
    retain_graph=True. With a scaler it is often the loss once as it is, and once scaled.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward(retain_graph=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, and refused:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        loss.backward()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, two losses of one forward pass:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x)
            loss, other = loss_fn(out, y), out.square().mean()
        scaler.scale(loss).backward(retain_graph=True)
        scaler.scale(other).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found: list[tuple[Backward, Backward]] = []
    given: dict[int, int] = {}  # what a scaled loss was before
    sent: dict[int, Backward] = {}  # the last backward pass of each loss
    for event, past in walk(run):
        if isinstance(event, Scaled):
            given[event.result] = event.given
        if isinstance(event, Backward) and event.how == "backward":
            losses = [given.get(each, each) for each in event.losses]
            for first in [sent[each] for each in losses if each in sent][:1]:
                if any(_both_there(past, first, event, each) for each in range(len(run.optimizers))):
                    found.append((event, first))
            sent |= dict.fromkeys(losses, event)
    if found:
        second, first = found[0]
        said = "the second was refused" if second.raised else "its gradients were added to themselves"
        yield Finding(
            f"The same loss was sent backward twice in step {second.step}{again([each[0] for each in found])}: {said}.",
            tuple(event for each in found for event in each),
            fix=Fix(
                second if second.scaled_by is None else first,
                remove=("{line}",) if line_of(first) != line_of(second) else (),
                say="Send each loss backward once.",
            ),
        )


@rule(
    "loss-without-graph",
    Severity.WRONG,
    title="the loss does not hang together with the weights",
    explains=("no-gradients",),
)
def loss_without_graph(run: Run) -> Iterator[Finding]:
    """backward() is called on a loss that no weight has a part in: it was detached, or every weight is frozen.

    PyTorch raises "element 0 of tensors does not require grad and does not have a grad_fn".

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x).detach(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, all frozen:
        model.requires_grad_(False)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
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
    if not any("does not require grad" in e.message for e in run.of(Raised)):
        return
    for event in run.of(Backward):
        forwards = [e for e in run.of(Forward) if e.step == event.step]
        if not event.raised or event.touched or any(not e.grad for e in forwards[-1:]):
            continue  # a forward pass under no_grad: see forward-without-grad
        frozen = bool(run.models) and not any(model.requires_grad for model in run.models)
        why = (
            "every parameter of the model is frozen (requires_grad is False)"
            if frozen
            else "the model ran with gradients, but between its output and the loss the graph was cut: by .detach(), "
            ".item(), .numpy(), torch.tensor(...), argmax or a comparison"
        )
        yield Finding(
            f"The loss of step {event.step} has no graph to go back through: {why}.",
            (event,),
            {"parameters that require a gradient": sum(model.requires_grad for model in run.models)},
            Fix(
                event,
                say="Set requires_grad to True for what is to be trained, before the optimizer is made." if frozen
                else "Compute the loss from the model's output itself.",
            ),
        )  # fmt: skip
        return


def _both_there(past: Past, first: Backward, second: Backward, optimizer: int) -> bool:
    """Whether an optimizer gets the gradients of both passes for one step; one that was refused may not reach it."""
    events = after_zero(past.since(Stepped, optimizer) or [], optimizer)
    touched = optimizer in first.touched or first.raised
    return touched and (optimizer in second.touched or second.raised) and first in events
