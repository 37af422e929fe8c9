"""Optimizers that have nothing to step with."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import Backward, Stepped, ZeroGrad
from amp_lab.watching.recording.run import OptimizerFacts, Run
from amp_lab.watching.rules.order import EMPTY, again, live, of, optimizer_of, walk
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import counted


@rule(
    "no-gradients",
    Severity.WRONG,
    title="an optimizer without gradients",
    explains=("update-without-step", "clip-of-nothing"),
)
def no_gradients(run: Run) -> Iterator[Finding]:
    """An optimizer is asked to step, and none of its parameters has a gradient.

    Its parameters are frozen; or they are not those of the model that is trained (a copy was made, by deepcopy, loading
    or wrapping, after the optimizer was built); or no backward pass has come to them. With a scaler PyTorch raises "No
    inf checks were recorded for this optimizer"; without one nothing is said, and nothing moves.

    Wrong:
        optimizer = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Wrong, in FP32:
        optimizer = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

    Wrong, frozen:
        model_b.requires_grad_(False)
        for x, y in batches:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x) + model_b(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.step(optimizer_b)
            scaler.update()

    Wrong, before the backward pass:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaled = scaler.scale(loss)
        scaler.step(optimizer)
        scaled.backward()
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for optimizer, facts in enumerate(run.optimizers):
        steps = [e for e in run.of(Stepped) if e.optimizer == optimizer and not e.closure]
        empty = [e for e in steps if e.state in EMPTY and e.with_gradient == 0 and not _lost(run, e)]
        refused = [e for e in empty if e.raised and live(run, e.scaler)]
        # Without a scaler an optimizer may rest for a while: only one that never had gradients is certainly wrong.
        if not refused and (len(empty) < len(steps) or len(empty) < 2):
            continue
        first = (refused or empty)[0]
        called = optimizer_of(run, first)
        why, do = _why(run, first, facts)
        yield Finding(
            f"{called} was asked to step in step {first.step}{again(refused or empty)}, and none of its "
            f"{counted(facts.parameters, 'parameter')} had a gradient: {why}.",
            tuple(refused or empty),
            {
                "parameters": facts.parameters,
                "of them in no watched model": facts.foreign,
                "of them that require a gradient": facts.requires_grad,
            },
            Fix(first, say=do),
        )


@rule(
    "parameters-replaced", Severity.WRONG, title="the optimizer holds parameters that the model has no more"
)
def parameters_replaced(run: Run) -> Iterator[Finding]:
    """A part of the model was replaced after the optimizer was built: it steps the old weights, not the new ones.

    The old ones never get a gradient, and the new ones never move.

    Wrong:
        model[2] = nn.Linear(8, 1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        model[2] = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    outside = sum(model.unoptimized for model in run.models)
    for optimizer, facts in enumerate(run.optimizers):
        steps = [
            e for e in run.of(Stepped) if e.optimizer == optimizer and not e.raised and e.state not in EMPTY
        ]
        old = facts.parameters - facts.foreign
        if not 0 < facts.foreign < facts.parameters or not outside or not steps:
            continue
        if all(e.with_gradient <= old for e in steps):
            called = optimizer_of(run, steps[0])
            yield Finding(
                f"{counted(facts.foreign, 'parameter')} of the {facts.parameters} that {called} steps "
                f"{'is' if facts.foreign == 1 else 'are'} in no watched model and never had a gradient, while "
                f"{counted(outside, 'parameter')} of the model {'is' if outside == 1 else 'are'} in no optimizer.",
                (steps[0],),
                {"parameters with a gradient": steps[0].with_gradient, "parameters": facts.parameters},
                Fix(steps[0], say="Build the optimizer after the last change of the model."),
            )


@rule(
    "parameters-without-optimizer",
    Severity.RISK,
    title="parameters get gradients, and no optimizer steps them",
)
def parameters_without_optimizer(run: Run) -> Iterator[Finding]:
    """A part of the model is in no optimizer: it gets gradients, which add up from step to step, and it never moves.

    If it is not to be trained, freeze it: then no time and memory goes into its gradients.

    Wrong:
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        model[2].requires_grad_(False)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    left = [model for model in run.models if model.abandoned]
    steps = [e for e in run.of(Stepped) if not e.raised and e.state not in EMPTY]
    # Where an optimizer holds parameters of no watched model, some were replaced, or not all models are watched.
    if left and steps and not any(facts.foreign for facts in run.optimizers):
        number = sum(model.abandoned for model in left)
        yield Finding(
            f"{counted(number, 'parameter')} of {left[0].kind} {'gets' if number == 1 else 'get'} gradients in each "
            "backward "
            "pass, and no optimizer steps "
            f"{'it' if number == 1 else 'them'}.",
            (steps[0],),
            {"parameters": left[0].parameters, "of them in no optimizer, with a gradient": number},
            Fix(
                steps[0],
                say="Give them to an optimizer, or freeze them with requires_grad_(False), which saves time and "
                "memory.",
            ),
        )


def _why(run: Run, step: Stepped, facts: OptimizerFacts) -> tuple[str, str]:
    """Return why an optimizer has no gradients, and what to do."""
    before = [e for e in run.of(Backward) if e.number < step.number]
    if facts.requires_grad == 0:
        return "all are frozen (requires_grad is False)", (
            "Set requires_grad to True for what is to be trained, or leave this optimizer out."
        )
    if facts.foreign == facts.parameters and run.models:
        return (
            "none of them belongs to the model that was run; it was built on a copy, or on another model",
            (
                "Build the optimizer from the parameters of the model that you train, after the last change of the "
                "model."
            ),
        )
    if not before:
        return "no backward pass had been made", "Call backward() before the step."
    return "no backward pass had come to them", (
        "Look at whether the loss is computed from this model's output; if it need not be in each step, leave the "
        "step out."
    )


def _lost(run: Run, step: Stepped) -> bool:
    """Whether the gradients were zeroed just before the step: see zero-grad-before-step."""
    for event, past in walk(run):
        if event is step:
            since = past.since(Backward, step.optimizer) if past.happened(Backward, step.optimizer) else []
            used = of(Stepped, since, step.optimizer)
            return not used and any(
                isinstance(e, ZeroGrad) and step.optimizer in e.optimizers for e in since or ()
            )
    return False
