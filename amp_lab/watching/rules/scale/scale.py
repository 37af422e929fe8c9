"""The loss scale in the course of a run: where it cannot help, sinks to nothing, or cannot sink.

What is normal gets nothing: the first steps skipped at 2^16, a scale that overflows again each time it has grown, and
one that never grows in a run shorter than its growth interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from amp_lab.watching.recording.events import Backward, Event, Scaled
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.bad_gradients import bad_in_words, evidence, first_bad
from amp_lab.watching.rules.order import line_of, live
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import (
    Turn,
    active_scalers,
    asked,
    evidence_of,
    in_steps,
    skipped_to_the_end,
    steps_of,
    turns,
    was_skipped,
)
from amp_lab.watching.words import counted, in_words, read

_MANY: Final = 12  # skips in a row: 2^16 rarely needs more to find its place, even with a loss that is a sum
_NOTHING: Final = 2.0**-8  # FP16 overflows here only if a true gradient is above 65504 · 256
_STUCK: Final = 3  # the same scale overflows so often in a row: no update made it smaller


@rule(
    "loss-not-finite",
    Severity.WRONG,
    title="the loss itself is infinite or NaN",
    explains=("scale-collapse", "every-step-skipped", "scale-stuck"),
)
def loss_not_finite(run: Run) -> Iterator[Finding]:
    """The loss was infinite or NaN before anybody scaled it.

    Loss scaling cures gradients that leave the range of FP16 because of the scale. A loss that is not finite has its
    cause before: a number in the batch, an overflow in the forward pass, a logarithm of zero, weights that are
    NaN already. The scaler skips the step and halves the scale for nothing; without a scaler the optimizer takes the
    step, and every weight becomes NaN.

    Wrong:
        for x, y in batches:
            chosen = y > 100.0
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = F.mse_loss(model(x), y, reduction="sum") / chosen.sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        for x, y in batches:
            chosen = y > 100.0
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = F.mse_loss(model(x), y, reduction="sum") / chosen.sum().clamp(min=1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    bad: list[Event] = [event for event in run.of(Scaled) if read(event.finite) is False]
    plain = [e for e in run.of(Backward) if e.how == "backward" and e.scaled_by is None and not e.raised]
    bad += [event for event in plain if read(event.finite) is False]
    bad = [event for event in bad if not _a_lower_scale_cures(run, event)]
    if not bad:
        return
    bad.sort(key=lambda event: event.number)
    steps = steps_of(bad)
    yield Finding(
        f"The loss was infinite or NaN before it was scaled in {in_steps(steps)}: {_what_followed(run, bad)}.",
        tuple(bad),
        {"steps with such a loss": len(steps), **evidence(run, steps)},
        Fix(
            bad[0],
            say=f"Look at the batch of step {steps[0]:,} and at what the model makes of it: run it once more in FP32 "
            "(then an overflow of FP16 goes away, a NaN in the data or the weights stays).",
        ),
        Severity.WRONG if len(steps) > 1 or _took_it(run, steps) else Severity.RISK,
    )


def _a_lower_scale_cures(run: Run, bad: Event) -> bool:
    """Whether a loss holds scaled gradients: a penalty, of `torch.autograd.grad(scaler.scale(loss), …)`.

    Their overflow makes it infinite, its step is skipped, and at half the scale it is finite: there is one that is, or
    the scale is not small yet.
    """
    taken = [
        e for e in run.of(Backward)
        if e.step == bad.step and e.number < bad.number and e.how == "grad" and live(run, e.scaled_by)
    ]  # fmt: skip
    if not taken or not all(map(was_skipped, asked(run).get(bad.step, ()))):
        return False
    later = [e for e in run.of(Scaled) if e.number > bad.number and e.step > bad.step]
    losses = [e for e in later if line_of(e) == line_of(bad)]
    return any(read(e.finite) for e in losses) or (read(taken[-1].scale) or 0.0) >= 1.0


def _what_followed(run: Run, bad: Sequence[Event]) -> str:
    if _took_it(run, steps_of(bad)):
        took = [step for step in steps_of(bad) if _took_it(run, [step])]
        where = "" if len(took) == len(steps_of(bad)) else f"in {in_steps(took)} "
        return f"{where}the optimizer stepped all the same"
    if isinstance(bad[0], Scaled):
        return "no loss scale can cure that, the scaler only skips the step and halves the scale"
    return "no loss scale can cure that"


def _took_it(run: Run, steps: Sequence[int]) -> bool:
    """Whether an optimizer took a step with the gradients of such a loss."""
    return any(not was_skipped(event) for step in steps for event in asked(run).get(step, ()))


@rule(
    "scale-collapse",
    Severity.WRONG,
    title="the loss scale sinks to nothing",
    explains=("every-step-skipped",),
)
def scale_collapse(run: Run) -> Iterator[Finding]:
    """Step after step is skipped, and the loss scale sinks to nothing.

    A scale that is too large is cured by a few halvings. If gradients are not finite at a scale of 1/256 either, the
    scale is not the cause, and no other scale will help: look for what makes them infinite. torch's scaler has no
    floor: in 166 skips 2^16 becomes 0, without a word, and 0 stays 0. Nothing is learnt meanwhile; at 0, `unscale_`
    divides finite gradients by 0 and finds nothing wrong with them, so that an optimizer step makes the weights NaN.

    Wrong:
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), 1e18 * y)  # metres, in attometres
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        for x, y in batches_many:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for scaler in active_scalers(run):
        end = skipped_to_the_end(turns(run, scaler))
        if len(end) < _MANY or end[-1].after >= _NOTHING:
            continue
        last = end[-1]
        start = min(end[0].event.step, _row_of_skips(run, last.event.step))
        before = end[0].before if start == end[0].event.step else _scale_before(run, scaler, start)
        in_a_row = last.event.step - start + 1
        yield Finding(
            f"Every step from {start:,} on was skipped, {in_a_row:,} in a row, and the loss scale sank from "
            f"{in_words(before)} to {in_words(last.after)}: {_why_it_sinks(run, scaler, end)}.",
            evidence_of(end),
            {
                "skipped in a row": in_a_row,
                "scale before": before,
                "scale at the end": last.after,
                **evidence(run, steps_of(turn.event for turn in end)),
            },
            Fix(
                last.event,
                say="Find what makes the gradients infinite or NaN, and let the run stop where it learns nothing any "
                "more: `if scaler.get_scale() < 1: raise RuntimeError(...)`.",
            ),
        )


def _row_of_skips(run: Run, last: int) -> int:
    """Return the first of the skipped steps that end with `last`, also of those whose events were not kept."""
    skips = set(run.skips)
    while last - 1 in skips:
        last -= 1
    return last


def _scale_before(run: Run, scaler: int, step: int) -> float | None:
    earlier = [scale for each, scale in run.scales if each < step]
    return earlier[-1] if earlier else run.scalers[scaler].scale


def _why_it_sinks(run: Run, scaler: int, end: Sequence[Turn]) -> str:
    if end[-1].after == 0:
        if any(turn.before == 0 and not turn.skipped for turn in end):
            return (
                "at 0 every gradient is lost: what was finite of them became 0 divided by 0, and a step that was taken "
                "made the weights NaN"
            )
        return (
            "at 0 every gradient is lost: what is finite of them would become 0 divided by 0, and a step that is taken "
            "would make the weights NaN"
        )
    steps = set(steps_of(turn.event for turn in end))
    losses = [event for event in run.of(Scaled) if event.scaler == scaler and event.step in steps]
    if losses and all(read(event.finite) is True for event in losses):
        bad = first_bad(run, steps)
        which = "" if bad is None else f", {bad_in_words(bad)}"
        return (
            "the loss was finite each time and no smaller scale helped, so it is the gradients that are not finite"
            f"{which}"
        )
    return "no smaller scale helped, so the scale is not the cause"


@rule("every-step-skipped", Severity.WRONG, title="every step is skipped")
def every_step_skipped(run: Run) -> Iterator[Finding]:
    """No optimizer has taken a single step.

    The first steps at a scale of 2^16 are often skipped, until the scale has found its place. After a dozen that
    were all skipped something else is wrong: a scale that cannot sink, or gradients that are infinite at any scale.

    Wrong:
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, torch.float16):
                    loss = loss_fn(model(x), 1e18 * y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    Right:
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, torch.float16):
                    loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    """
    every = [event for events in asked(run).values() for event in events]
    steps = steps_of(every)
    if len(steps) < _MANY or not all(map(was_skipped, every)) or len(run.skips) < min(len(steps), run.steps):
        return
    if any(True for _ in scale_collapse(run)):
        return
    first, last = read(every[0].scale), read(every[-1].scale)
    bad = first_bad(run, steps)
    which = "" if bad is None else f", {bad_in_words(bad)},"
    yield Finding(
        f"Not one of {counted(run.steps, 'step')} was taken: the gradients{which} overflowed at a loss scale of "
        f"{in_words(first)} in step {steps[0]:,} and at {in_words(last)} in step {steps[-1]:,}.",
        tuple(every),
        {"first scale": first, "last scale": last, **evidence(run, steps)},
        Fix(
            every[0],
            say="Compare the gradients with those of a step in FP32, without a scale: are they finite there?",
        ),
    )


@rule(
    "scale-stuck",
    Severity.WRONG,
    title="the scale that overflows comes back",
    explains=("every-step-skipped",),
)
def scale_stuck(run: Run) -> Iterator[Finding]:
    """The same scale overflows in one step after the other, for nothing makes it smaller.

    `update(new_scale)` takes the place of what the scaler would have done: the scale that has just overflowed is
    set again. A backoff factor of 1 does the same. A scale of one's own choice belongs into `init_scale`.

    Wrong:
        scaler = GradScaler(device_type, init_scale=2.0**24)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(2.0**24)

    Right:
        scaler = GradScaler(device_type, init_scale=2.0**24)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for scaler in active_scalers(run):
        stuck = _longest_stuck(turns(run, scaler))
        if len(stuck) < _STUCK:
            continue
        given = any(turn.event.given for turn in stuck)
        why = "update(new_scale) set it back each time" if given else "no update made it smaller"
        place = stuck[0].event
        change = Fix(
            place, ("{line}",), ("{scaler}.update()",), say="Let the scaler choose: update() without a scale."
        )
        yield Finding(
            f"A loss scale of {in_words(stuck[0].before)} overflowed in "
            f"{in_steps(steps_of(t.event for t in stuck))}, "
            f"{len(stuck):,} times in a row: {why}.",
            evidence_of(stuck),
            {"scale": stuck[0].before, "skipped in a row": len(stuck)},
            change if given else Fix(place, say="Give the scaler a backoff_factor below 1, such as 0.5."),
        )


def _longest_stuck(all_turns: Sequence[Turn]) -> list[Turn]:
    """Return the longest row of skipped turns in which the scale was no smaller than before."""
    best: list[Turn] = []
    row: list[Turn] = []
    for turn in all_turns:
        goes_on = row and turn.event.step == row[-1].event.step + 1 and turn.before >= row[-1].before
        row = [*row, turn] if goes_on else [turn]
        if not turn.skipped or turn.before == 0:
            row = []
        best = max(best, row, key=len)
    return best
