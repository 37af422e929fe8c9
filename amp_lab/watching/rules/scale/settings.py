"""What a scaler was made with: factors, interval, initial scale, device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from amp_lab.watching.recording.events import Event, Scaled
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import (
    Turn,
    active_scalers,
    evidence_of,
    fp16_without_scale,
    in_steps,
    real_steps,
    steps_of,
    turns,
)
from amp_lab.watching.words import counted, in_words

_MANY: Final = 12  # skips at the beginning: 2^16 rarely needs more, even with a loss that is a sum
_LARGE: Final = 2.0**24  # an initial scale; torch's is 2^16
_OFTEN: Final = 0.2  # of all steps skipped because the scale had just grown
_CYCLES: Final = 3
_ENOUGH: Final = 20  # steps, for a share of them to mean something


@rule(
    "scale-settings",
    Severity.WRONG,
    title="factors with which the scale goes the wrong way",
    explains=("scale-stuck", "scale-collapse", "every-step-skipped", "scale-grows-too-fast"),
)
def scale_settings(run: Run) -> Iterator[Finding]:
    """A backoff factor that does not make the scale smaller, or a growth factor that does.

    The constructor refuses both, but `set_backoff_factor` and `set_growth_factor` take any number. Both at 1 is a
    static scale, made on purpose: that is right as long as nothing overflows.

    Wrong:
        scaler.set_backoff_factor(2.0)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        scaler.set_backoff_factor(0.25)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for scaler in active_scalers(run):
        facts = run.scalers[scaler]
        growth, backoff = facts.growth_factor, facts.backoff_factor
        events: tuple[Event, ...] = tuple(e for e in run.of(Scaled) if e.scaler == scaler)[:1]
        values = {"growth factor": growth, "backoff factor": backoff}
        if backoff > 1 or (backoff == 1 and growth > 1):
            say = "Set a backoff_factor between 0 and 1, such as 0.5."
            yield Finding(
                f"The backoff factor is {in_words(backoff)}: an overflow does not make the loss scale "
                "smaller, so the "
                "next step overflows, too.",
                events,
                values,
                Fix(events[0], say=say),
            )
        if growth < 1:
            yield Finding(
                f"The growth factor is {in_words(growth)}: after each {counted(facts.growth_interval, 'good step')} "
                "the loss scale becomes smaller, until small gradients are lost.",
                events,
                values,
                Fix(events[0], say="Set a growth_factor above 1, such as 2."),
            )


@rule("scale-grows-too-fast", Severity.RISK, title="the scale grows into an overflow again and again")
def scale_grows_too_fast(run: Run) -> Iterator[Finding]:
    """A good part of all steps is lost because the scale has just grown.

    After `growth_interval` good steps the scaler tries twice the scale. If that overflows, one step is lost: one in
    2,000 with torch's interval, which is what loss scaling is meant to do. With an interval of 1 it is every second
    step, with 4 still every fifth.

    Wrong:
        scaler = GradScaler(device_type, init_scale=2.0**15, growth_interval=1)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        scaler = GradScaler(device_type, init_scale=2.0**15, growth_interval=20)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    real = real_steps(run)
    if not real or not run.scalers or not run.scalers[0].enabled:
        return
    lost = [turn for turn in _after_growth(turns(run, 0)) if turn.event.step > real[0]]
    steps = run.steps - real[0]
    if len(lost) < _CYCLES or steps < _ENOUGH or len(lost) < _OFTEN * steps:
        return
    interval = run.scalers[0].growth_interval
    yield Finding(
        f"{len(lost):,} of {counted(steps, 'step')} were skipped because the loss scale had just grown: it "
        "grows after "
        f"{counted(interval, 'good step')}.",
        evidence_of(lost),
        {"growth interval": interval, "share of steps lost": len(lost) / steps},
        Fix(lost[0].event, say="Give the scaler a longer growth_interval: torch's own is 2,000 steps."),
    )


def _after_growth(all_turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns in which a scale overflowed that had grown: the first skips, until a step goes well again."""
    grown = False
    for turn in all_turns:
        if turn.skipped and grown:
            yield turn
        elif not turn.skipped:
            grown = turn.after > turn.before and not turn.event.given


@rule("init-scale-too-large", Severity.NOTE, title="the run begins at a scale that is much too large")
def init_scale_too_large(run: Run) -> Iterator[Finding]:
    """The first steps were all lost, because the initial scale is far above what FP16 can hold.

    FP16 ends at 65504. A scale above 2^24 leaves room only for gradients below 0.004, and each halving costs a step.
    From torch's 2^16 some first steps are skipped, too; that is normal.

    Wrong:
        scaler = GradScaler(device_type, init_scale=2.0**40)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        scaler = GradScaler(device_type)
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for scaler in active_scalers(run):
        every = turns(run, scaler)
        good = next((place for place, turn in enumerate(every) if not turn.skipped), 0)
        if good < _MANY or every[0].before <= _LARGE or every[0].event.step != 1:
            continue
        lost = every[good].event.step - 1
        yield Finding(
            f"The first {lost:,} steps were skipped: the run began with a loss scale of {in_words(every[0].before)}, "
            f"and {in_words(every[good].before)} was the first that did not overflow.",
            evidence_of(every[:good]),
            {"initial scale": every[0].before, "first good scale": every[good].before},
            Fix(
                every[0].event,
                say="Begin with torch's own initial scale, 2^16, or with the first that was good here.",
            ),
        )


@rule("scaler-device-number", Severity.WRONG, title="the scale was given as the device")
def scaler_device_number(run: Run) -> Iterator[Finding]:
    """`GradScaler(1024.0)`: the first parameter of `torch.amp.GradScaler` is `device`, not `init_scale`.

    The number is kept as the device and not looked at; the scale begins at 2^16 all the same. So does
    `GradScaler(use_amp)`: with False as its device the scaler is enabled. (The old `torch.cuda.amp.GradScaler` took the
    scale first, and still does.)

    Wrong:
        scaler = GradScaler(1024.0)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        scaler = GradScaler(device_type, init_scale=1024.0)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for scaler in active_scalers(run):
        facts = run.scalers[scaler]
        if not isinstance(facts.device, int | float):
            continue
        meant = "enabled" if isinstance(facts.device, bool) else "init_scale"
        events: tuple[Event, ...] = tuple(e for e in run.of(Scaled) if e.scaler == scaler)[:1]
        yield Finding(
            f"{facts.kind}({facts.device!r}) takes {facts.device!r} for the device: it is an enabled scaler, and its "
            f"scale began at {in_words(facts.scale) or 'its default'}.",
            events,
            {"device": repr(facts.device), "scale at the beginning": facts.scale},
            Fix(events[0], say=f"Give it by name: {facts.kind}(device_type, {meant}={facts.device!r})."),
        )


@rule(
    "scaler-disabled-itself",
    Severity.WRONG,
    title="the scaler has disabled itself",
    explains=("fp16-without-scaler", "load-ignored", "scaler-unused"),
)
def scaler_disabled_itself(run: Run) -> Iterator[Finding]:
    """A scaler that was made for CUDA, on a machine without it: it disables itself, and scales nothing.

    `GradScaler()` means `GradScaler("cuda")`. Without CUDA it gives a warning, easily lost among others, and from then
    on passes losses and steps through as they are. FP16 autocast on the CPU trains on without loss scaling: small
    gradients become zero.

    Wrong:
        scaler = GradScaler()
        for x, y in batches:
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
    plain = fp16_without_scale(run)
    for number, facts in enumerate(run.scalers):
        device = run.models[0].device_type if run.models else "cpu"
        hit = [event for event in plain if event.scaled_by in (None, number)]
        elsewhere = facts.device == "cuda" and device != "cuda"
        if facts.enabled or facts.asked_enabled is False or not (elsewhere or facts.asked_enabled) or not hit:
            continue
        yield Finding(
            f"The {facts.kind} is disabled: it was made for {facts.device!r}, and the model is on "
            f"{device!r}, so that FP16 "
            f"autocast trained without a loss scale in {in_steps(steps_of(hit))}.",
            tuple(hit),
            {"made for": str(facts.device), "the model is on": device},
            Fix(hit[0], say=f'Make it for the model\'s device: {facts.kind}("{device}").'),
        )
