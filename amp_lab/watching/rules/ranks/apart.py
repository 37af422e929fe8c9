"""What must be equal on all ranks, and is not: skipped steps, loss scales, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from amp_lab.watching.recording.events import Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule


@rule(
    "ranks-skip-apart",
    Severity.WRONG,
    title="a step was skipped on some ranks, and taken on the others",
    explains=("ranks-scale-apart", "replicas-drift"),
)
def ranks_skip_apart(run: Run) -> Iterator[Finding]:
    """DDP averages gradients, so that an infinity on one rank is one on all, and every scaler skips the same step.

    One that comes into the gradients after they were averaged stays on its rank. That rank skips and lowers its scale,
    the others step: from then on neither the weights nor the loss scales are equal.

    Wrong:
        for step, (x, y) in enumerate(batches):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            if step == 3 and rank == 1:  # such as noise, or a penalty, that is added here
                next(model.parameters()).grad[0] = math.inf
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    Right:
        for step, (x, y) in enumerate(batches):
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            if step == 3 and rank == 1:
                loss = loss * 1e5  # overflows in the backward pass, and the average brings that to all ranks
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """
    apart, scales = run.ranks.skips_apart(), run.ranks.scales_apart()
    if apart is not None and (scales is None or scales.step >= apart.step):  # else that is why
        yield _finding(
            run,
            apart.step,
            f"Step {apart.step} was {apart.words}: an infinity or NaN came into the gradients of some ranks after they "
            "had been averaged.",
            "Change gradients in the same way on all ranks, or before the backward pass ends; or let all ranks decide "
            "together: all_reduce the flag, by its maximum, before {scaler}.step.",
        )


@rule(
    "ranks-scale-apart",
    Severity.WRONG,
    title="the loss scale is another one on each rank",
    explains=("replicas-drift",),
)
def ranks_scale_apart(run: Run) -> Iterator[Finding]:
    """Each rank has a scaler of its own, and all must have the same scale: DDP averages gradients that are scaled.

    An average of gradients of different scales, divided by one of them, is none of the gradients. Scales that begin
    equal stay so, because all ranks skip together. So make them, load them and set them in the same way everywhere.

    Wrong:
        scaler = GradScaler("cpu", init_scale=1024.0 if rank == 0 else 512.0)
        for x, y in batches:
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    Right:
        scaler = GradScaler("cpu", init_scale=1024.0)
        for x, y in batches:
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """
    apart = run.ranks.scales_apart()
    if apart is not None:
        yield _finding(
            run,
            apart.step,
            f"After step {apart.step} the loss scale was {apart.words}.",
            "Give every rank the same scaler: made with the same numbers, loaded on all ranks from the same "
            "checkpoint, and set by none of them alone.",
        )


@rule("replicas-drift", Severity.WRONG, title="the ranks train different weights")
def replicas_drift(run: Run) -> Iterator[Finding]:
    """Every rank must take the same step with the same gradients: then its copy of the weights stays equal.

    DDP sees to equal weights at the beginning and to equal gradients. It does not see what is done to the gradients
    afterwards, on one rank, or to the weights. Without DDP nobody makes the weights equal at the beginning.

    Wrong:
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            if rank == 1:
                clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()

    Wrong, averaged by hand:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))  # on each rank its own numbers
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

    Right, averaged by hand:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        for each in model.parameters():
            dist.broadcast(each.data, src=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # watched from here
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()
    """
    apart = run.ranks.weights_apart()
    if apart is None:
        return
    if apart.step > 1:
        since = f"Step {apart.step} began"
        say = "Look for what one rank does between the backward pass and the next forward pass and the others do not."
    else:
        since = "The ranks began"
        say = "Send the weights of rank 0 to all before the first step, as DDP does when it is made."
    sentence = f"{since} with different weights, and they were different to the end."
    yield _finding(run, apart.step - 1, sentence, say, {"checksum of the weights": apart.words})


def _finding(
    run: Run, step: int, sentence: str, say: str, values: Mapping[str, object] | None = None
) -> Finding:
    """Return a finding at the call that took a step; where that was not kept, at one of the nearest step."""
    nearest = min(run.of(Stepped), key=lambda each: abs(each.step - step), default=None)
    if nearest is None:
        return Finding(sentence, (), values or {})
    event = replace(nearest, step=max(step, 1))
    return Finding(sentence, (event,), values or {}, Fix(event, say=say))
