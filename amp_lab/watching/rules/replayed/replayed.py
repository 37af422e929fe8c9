"""Where infinity or NaN came from, told by a batch that was run again: `watch(..., replay=closure)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from amp_lab.watching.recording.events import BadGradients, Event, Replayed, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.bad_gradients import bad_in_words
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule

_CONSEQUENCES: Final = (
    "loss-not-finite",
    "scale-collapse",
    "every-step-skipped",
    "scale-stuck",
    "sum-poisoned",
    "counter-on-skip",
)
# What a look at single operators can tell: right, but without a test of it.
_GUESSES: Final = (
    "activation-overflows",
    "cast-overflows",
    "exp-overflows",
    "eps-lost",
    "input-overflows",
    "log-of-zero",
    "loss-overflows",
    "nan-derivative",
    "nan-in-data",
    "overflow-hidden",
    "scores-overflow",
    "square-overflows",
    "sum-overflows",
    "clip-of-infinite",
)


@rule(
    "replayed",
    Severity.WRONG,
    title="a batch overflows at every useful loss scale",
    explains=_CONSEQUENCES + _GUESSES,
)
def replayed(run: Run) -> Iterator[Finding]:
    """A batch whose step was skipped was run again: a much smaller scale did not cure it, and this is where it began.

    Only told where `watch` was given a function that runs the batch again (`replay`). What else was found about that
    step follows from it, and so does a scale that sinks for nothing.

    Wrong:
        def replay():
            with autocast(device_type, dtype=torch.float16):
                return loss_fn(model(x), 1e30 * y)  # metres, in something very small

        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), 1e30 * y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        def replay():
            with autocast(device_type, dtype=torch.float16):
                return loss_fn(model(x), y)

        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    found: dict[tuple[object, ...], list[Replayed]] = {}
    for event in run.of(Replayed):
        report = event.report
        found.setdefault((report.cause, report.op, report.module, report.source), []).append(event)
    for events in found.values():
        yield _finding(run, events)


def _finding(run: Run, events: list[Replayed]) -> Finding:
    report = events[0].report
    return Finding(
        f"{report.cause}: {report.sentence}",
        (*events, *_skipped_in(run, events[0].step)),
        _values(run, events),
        Fix(events[0], say=report.advice) if report.advice else None,
    )


def _skipped_in(run: Run, step: int) -> tuple[Event, ...]:
    return tuple(each for each in run.of(Stepped) if each.step == step)[:1]


def _values(run: Run, events: list[Replayed]) -> dict[str, Any]:
    report, step = events[0].report, events[0].step
    bad = next((each for each in run.of(BadGradients) if each.step == step), None)
    where = ", ".join(each for each in (report.op, report.module, report.phase) if each)
    values = {
        "began in": where or None,
        "gradients not finite": None if bad is None else bad_in_words(bad),
        "largest loss scale that cures it": report.scale,
    }
    return {name: value for name, value in values.items() if value is not None}
