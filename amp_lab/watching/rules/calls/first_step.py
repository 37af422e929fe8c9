"""What an optimizer makes in its first step, and does not make if that is skipped."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.events import StateLoaded, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.order import name
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import was_skipped
from amp_lab.watching.words import in_words


@rule(
    "fused-sgd-first-skip",
    Severity.RISK,
    title="a fused SGD's momentum was never written",
    explains=(
        "loss-not-finite",
        "loss-overflows",
        "input-overflows",
        "activation-overflows",
        "scale-collapse",
        "every-step-skipped",
        "scale-stuck",
        "sum-poisoned",
        "init-scale-too-large",
    ),
)
def fused_sgd_first_skip(run: Run) -> Iterator[Finding]:
    """The first step of a fused SGD with momentum was skipped, and its momentum is what was in memory before.

    PyTorch reserves the momentum without writing to it, for the first step is to write it. A fused
    optimizer is called in a skipped step, too, and leaves everything as it is; in the next step the momentum is taken
    for one that was written: these numbers, times the momentum, are added to the gradients. In fresh memory they are
    often zeros, and nothing happens; in memory that was used before they are anything.

    Wrong:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        for x, y in batches_overflow[2:4]:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=False)
        for x, y in batches_overflow[2:4]:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right, with a scale that does not overflow:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        scaler = GradScaler(device_type, init_scale=64.0)
        for x, y in batches_overflow[2:4]:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for optimizer, facts in enumerate(run.optimizers):
        if facts.kind != "SGD" or not facts.momentum or not facts.fresh:
            continue
        steps = [e for e in run.of(Stepped) if e.optimizer == optimizer and not e.raised]
        loaded = [e for e in run.of(StateLoaded) if e.of == "optimizer" and e.index == optimizer]
        if not steps or not steps[0].fused or not was_skipped(steps[0]) or not steps[0].with_gradient:
            continue
        if loaded and loaded[0].number < steps[-1].number:
            continue  # it brought a momentum along
        called = name(run, steps[0], "optimizer", optimizer)
        yield Finding(
            f"The first step of {called}, a fused SGD with a momentum of {in_words(facts.momentum)}, was skipped in "
            f"step {steps[0].step:,}: its momentum was never written, and the first step that is taken adds whatever "
            "was in that memory.",
            tuple(steps[:2]),
            {"momentum": facts.momentum, "loss scale": steps[0].scale},
            Fix(
                steps[0],
                say="Make SGD with fused=False, or give the scaler an init_scale that does not overflow in the first "
                "step.",
            ),
        )
