"""Steps that are skipped at every scale: NaN in the data, and derivatives that are infinite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from amp_lab.watching.recording.events import Event, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import (
    at_one_line,
    goes_back,
    in_steps,
    number,
    other_lines,
    where_it_shows,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words, listed, steps_in_words

_CONSEQUENCES: Final = (
    "loss-not-finite",
    "scale-collapse",
    "every-step-skipped",
    "scale-stuck",
    "sum-poisoned",
    "counter-on-skip",
)


@rule("nan-in-data", Severity.WRONG, title="NaN or infinity in the data", explains=_CONSEQUENCES)
def nan_in_data(run: Run) -> Iterator[Finding]:
    """A batch holds NaN or infinity: its step is skipped at every scale, and each time the scale is halved for nothing.

    Wrong:
        for x, y in batches_nan:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        for x, y in batches_nan:
            if not x.isfinite().all():
                continue
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    found = where_it_shows(run, "data", lambda _, seen: number(seen["bad"]) == 1)
    if found:
        event = found[0][0]
        names = sorted({str(each.values["name"]) for each, _ in found})
        steps = sorted({each.step for each, _ in found})
        yield Finding(
            f"The data of step{'s' if len(steps) > 1 else ''} {steps_in_words(steps)} held NaN or infinity, in "
            f"{listed([f'`{name}`' for name in names])}: such a step is skipped at every loss scale.",
            (*_skipped_in(run, steps[0]), *(each for each, _ in found)),
            {"where": tuple(names)},
            Fix(
                event, say="Leave such a batch out, or clean it, where it is loaded: torch.isfinite(x).all()."
            ),
        )


def _skipped_in(run: Run, step: int) -> Sequence[Event]:
    return [each for each in run.of(Stepped) if each.step == step][:1]


@rule(
    "nan-derivative",
    Severity.WRONG,
    title="a derivative that is infinite at zero",
    explains=_CONSEQUENCES,
)
def nan_derivative(run: Run) -> Iterator[Finding]:
    """A square root or a logarithm meets exactly zero: the result may be finite, or hidden by torch.where, but the
    derivative is infinite, and 0 times infinity is NaN. No scale helps, and FP32 does not.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x).float().abs() * (y > 0)
            h = torch.where(h > 0, torch.log(h), 0.0)
            loss = loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, with a root:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x).float()
            distances = ((h[:, None] - h[None, :]) ** 2).sum(-1).sqrt()
            loss = loss_fn(model[2](h), y) + distances.mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x).float().abs() * (y > 0)
            h = torch.where(h > 0, torch.log(torch.where(h > 0, h, 1.0)), 0.0) + (h + 1e-4).sqrt()
            loss = loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = [
        each
        for each in where_it_shows(run, "pole", lambda _, seen: number(seen["zero"]) == 1)
        if goes_back(run, each[0]) and _was_no_step(run, each[0].step)
    ]
    if found:
        event = found[0][0]
        yield Finding(
            f"{event.values['call']} met numbers that are exactly 0 {in_steps(found)}{other_lines(found)}: its "
            f"derivative "
            "there is infinite or NaN, at every loss scale.",
            tuple(each for each, _ in at_one_line(found)),
            {"operator": in_words(event.values["call"])},
            Fix(
                event,
                say="Keep zeros from it: an eps inside, sqrt(x + eps), or torch.where around what goes in as well as "
                "around what comes out.",
            ),
        )


def _was_no_step(run: Run, step: int) -> bool:
    """Return whether an optimizer was skipped in a step, or stepped without a scaler that could have skipped it."""
    return any(each.step == step and (each.scaler is None or each.skipped.value) for each in run.of(Stepped))
