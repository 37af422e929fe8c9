"""Which scaler does what: made again in each step, handed over and forgotten, one beside another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Scaled,
    ScaleRead,
    ScalerMade,
    StateLoaded,
    Stepped,
    Updated,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import whole_call
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import (
    FEW,
    REGULAR,
    by_line,
    fp16_without_scale,
    in_steps,
    steps_of,
    was_skipped,
)
from amp_lab.watching.words import counted, in_words

_ENOUGH: Final = 20  # steps, to speak of each of them


@rule(
    "scaler-in-loop",
    Severity.WRONG,
    title="a new scaler in each step",
    explains=("scale-stuck", "every-step-skipped", "two-scalers", "scaler-unused", "fp16-without-scaler"),
)
def scaler_in_loop(run: Run) -> Iterator[Finding]:
    """The scaler is made inside the loop, so that each step begins at the initial scale again.

    A scaler learns from overflows, and remembers what it has learnt in itself. A new one in each step begins at 2^16
    each time: if that overflows, it overflows in every step, and nothing is ever learnt.

    Wrong:
        scaler = GradScaler(device_type)
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, in each epoch:
        for epoch in range(3):
            scaler = GradScaler(device_type, init_scale=2.0**24)
            for x, y in [*batches, *batches]:
                optimizer.zero_grad()
                with autocast(device_type, torch.float16):
                    loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    Right:
        scaler = GradScaler(device_type)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    made = [event for event in run.of(ScalerMade) if event.enabled]
    short = [
        event for event in made if len({e.step for e in run.of(Scaled) if e.scaler == event.scaler}) == 1
    ]
    if len(short) < FEW:
        yield from _one_an_epoch(run, made)
        return
    first = next(event for event in run.of(Scaled) if event.scaler == short[0].scaler)
    lost = [step for step in run.skips if step >= short[0].step]
    skipped = f", and {counted(len(lost), 'step')} were skipped" if len(lost) > 1 else ""
    yield Finding(
        f"A new {short[0].kind} was made for each of {counted(len(short), 'step')}: each begins at a loss scale of "
        f"{in_words(first.scale)} and forgets what the one before has learnt{skipped}.",
        # A scaler that is made between two steps belongs to the one before: what it scaled first tells its step.
        (short[0], *_first_losses(run, short)),
        {"scalers made": len(short), "scale at which each begins": first.scale, "skipped steps": len(lost)},
        Fix(short[0], say="Make the scaler once, before the loop."),
    )


def _one_an_epoch(run: Run, made: Sequence[ScalerMade]) -> Iterator[Finding]:
    """Yield the finding for scalers that one line makes now and then, and that have to learn their scale each time.

    Not for those that take over the state of another.
    """
    loaded = {event.index for event in run.of(StateLoaded) if event.of == "scaler"}
    for line in by_line(event for event in made if event.scaler not in loaded):
        used = {each.scaler: [e for e in run.of(Stepped) if e.scaler == each.scaler] for each in line}
        learning = [e for e in line[1:] if used[e.scaler] and was_skipped(used[e.scaler][0])]
        if (
            len(line) < FEW
            or len(learning) < 2
            or len({e.optimizer for each in used.values() for e in each}) > 1
        ):
            continue
        first = used[learning[0].scaler][0]
        yield Finding(
            f"A new {line[0].kind} was made {len(line)} times while one optimizer was trained: each begins at its "
            f"first loss scale, {in_words(first.scale)}, and {len(learning)} of them skipped steps again to learn "
            "what the one before knew.",
            (line[0], *(used[each.scaler][0] for each in learning)),
            {"scalers made": len(line), "scale at which they begin": first.scale},
            Fix(line[0], say="Make the scaler once, before the first epoch, and hand it over."),
            Severity.RISK,
        )


def _first_losses(run: Run, made: Sequence[ScalerMade]) -> Iterator[Scaled]:
    """Yield the first loss that each scaler scaled."""
    waiting = {each.scaler for each in made}
    for event in run.of(Scaled):
        if event.scaler in waiting:
            waiting.remove(event.scaler)
            yield event


@rule(
    "scaler-unused",
    Severity.WRONG,
    title="there is a scaler, but nobody uses it",
    explains=("fp16-without-scaler",),
)
def scaler_unused(run: Run) -> Iterator[Finding]:
    """A scaler was made and handed to the watcher, and the loop trains in FP16 without it.

    Autocast alone does not scale anything. Gradients below 6e-8 become zero in FP16.

    Wrong:
        scaler = GradScaler(device_type)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

    Right:
        scaler = GradScaler(device_type)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    plain = fp16_without_scale(run)
    used = {e.scaler for e in run.events if isinstance(e, Scaled | Stepped | Updated)}
    for number, facts in enumerate(run.scalers):
        if not (facts.given and facts.enabled) or number in used or len(steps_of(plain)) < FEW:
            continue
        yield Finding(
            f"The {facts.kind} that was handed over was never used: FP16 autocast trained without a loss scale in "
            f"{in_steps(steps_of(plain))}.",
            tuple(plain),
            {"its scale": facts.scale},
            _use_it(run, plain[0]),
        )


def _use_it(run: Run, backward: Backward) -> Fix:
    """Return the change that scales the loss of a backward pass, and steps and updates through the scaler."""
    say = "Scale the loss, and step and update through the scaler."
    call = whole_call(backward, "backward")
    steps = [
        event for event in run.of(Stepped) if event.step == backward.step and event.number > backward.number
    ]
    if call is None or not steps:
        return Fix(backward, say=say)
    through = Fix(steps[-1], ("{line}",), ("{scaler}.step({optimizer})", "{scaler}.update()"))
    return Fix(backward, (call[0],), (f"{{scaler}}.scale({call[1]}).backward()",), say=say, also=(through,))


@rule(
    "two-scalers",
    Severity.WRONG,
    title="one scaler multiplies, another one divides",
    explains=("every-step-skipped", "scale-collapse", "step-without-scale", "raised"),
)
def two_scalers(run: Run) -> Iterator[Finding]:
    """The loss was scaled by one scaler, and the optimizer was stepped by another.

    The two scales are the same only until one of them changes; from then on every update is too large or too small
    by their ratio. One scaler serves several losses and several optimizers; two scalers need two losses, each with
    optimizers of its own.

    Wrong:
        scaler = GradScaler(device_type, init_scale=1024.0)
        scaler_b = GradScaler(device_type, init_scale=4096.0)
        for x, y in batches:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, torch.float16):
                loss, loss_b = loss_fn(model(x), y), loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler_b.scale(loss_b).backward()
            scaler_b.step(optimizer)
            scaler.step(optimizer_b)
            scaler.update()
            scaler_b.update()

    Right:
        scaler = GradScaler(device_type, init_scale=1024.0)
        scaler_b = GradScaler(device_type, init_scale=4096.0)
        for x, y in batches:
            optimizer.zero_grad()
            optimizer_b.zero_grad()
            with autocast(device_type, torch.float16):
                loss, loss_b = loss_fn(model(x), y), loss_fn(model_b(x), y)
            scaler.scale(loss).backward()
            scaler_b.scale(loss_b).backward()
            scaler.step(optimizer)
            scaler_b.step(optimizer_b)
            scaler.update()
            scaler_b.update()
    """
    pairs = list(_crossed(run))
    if not pairs:
        return
    backward, step = pairs[0]
    yield Finding(
        f"In {in_steps(steps_of(step for _, step in pairs))} the loss was multiplied by one scaler's scale, "
        f"{in_words(backward.scale)}, and the optimizer stepped through another scaler, whose scale was "
        f"{in_words(step.scale)}.",
        tuple(event for pair in pairs for event in pair),
        {"scale of the loss": backward.scale, "scale of the step": step.scale},
        Fix(step, say="Use one scaler for everything that trains the same weights."),
    )


def _crossed(run: Run) -> Iterator[tuple[Backward, Stepped]]:
    """Yield backward passes and the steps taken with their gradients, where the scalers are not the same."""
    last: dict[int, list[Backward]] = {}
    for event in run.of(Event):
        if isinstance(event, Backward) and event.how == "backward" and _enabled(run, event.scaled_by):
            for optimizer in event.touched:
                last.setdefault(optimizer, []).append(event)
        elif isinstance(event, Stepped):
            passes = [each for each in last.pop(event.optimizer, ()) if each.step == event.step]
            others = [each for each in passes if each.scaled_by != event.scaler]
            if others and _enabled(run, event.scaler):
                yield others[0], event


def _enabled(run: Run, scaler: int | None) -> bool:
    return scaler is not None and scaler < len(run.scalers) and run.scalers[scaler].enabled


@rule("get-scale-each-step", Severity.NOTE, title="the scale is read in each step")
def get_scale_each_step(run: Run) -> Iterator[Finding]:
    """`get_scale()` in each step makes the host wait for the GPU.

    Most optimizers wait anyway: `scaler.step` reads whether the gradients were finite before it calls them. A fused
    one decides on the GPU, so that nothing waits, unless somebody reads the scale. Its GPU then stands idle while the
    host prepares the next step. Read it in every hundredth step, or together with the loss.

    On a CPU there is nothing to wait for, so this can be seen on a CUDA machine only.

    Wrong, on a GPU:
        model = model.cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = GradScaler("cuda", init_scale=1024.0)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast("cuda", torch.float16):
                loss = loss_fn(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scale = scaler.get_scale()

    Right, on a GPU:
        model = model.cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = GradScaler("cuda", init_scale=1024.0)
        for number, (x, y) in enumerate(batches_many):
            optimizer.zero_grad()
            with autocast("cuda", torch.float16):
                loss = loss_fn(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if number % 20 == 0:
                scale = scaler.get_scale()
    """
    on_gpu = any(model.device_type == "cuda" for model in run.models)
    reads = [event for event in run.of(ScaleRead) if event.step in run.kept_steps]
    steps = steps_of(reads)
    all_fused = bool(run.optimizers) and all(optimizer.fused for optimizer in run.optimizers)
    if (
        not on_gpu
        or not all_fused
        or len(run.kept_steps) < _ENOUGH
        or len(steps) < REGULAR * len(run.kept_steps)
    ):
        return
    yield Finding(
        f"get_scale() was called in {len(steps):,} of {counted(len(run.kept_steps), 'step')}: each call "
        "makes the host "
        "wait for the GPU, and with a fused optimizer nothing else does.",
        tuple(reads),
        {"reads": run.counts.get("ScaleRead", len(reads))},
        Fix(reads[0], say="Read the scale in some steps only, such as each hundredth, where you log it."),
    )
