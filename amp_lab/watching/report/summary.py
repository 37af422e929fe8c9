"""What was seen in a run, in a few sentences: how many steps, which were skipped, how the scale and the losses went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from amp_lab.watching.recording.events import Backward, Updated
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Severity
from amp_lab.watching.words import LONG, counted, in_words, listed, read, shortened, steps_in_words

if TYPE_CHECKING:
    from amp_lab.watching.report.report import Report

_VERDICTS: Final = {
    Severity.WRONG: ("is wrong", "are wrong"),
    Severity.RISK: ("is a risk", "are risks"),
    Severity.NOTE: ("is worth knowing", "are worth knowing"),
}
_FULL: Final = "report.full() says why, with a right loop for each, and shows all evidence."


def verdict(report: Report) -> str:
    """Say in one sentence how it stands with a run."""
    run = report.run
    found = _found(report)
    if run.steps == 0 and not found:
        return _nothing(run)
    where = f"in {counted(run.steps, 'step')}{_watched(run)}"
    return f"{found or 'Nothing wrong was found'} {where}."


def _found(report: Report) -> str:
    counts = Counter(each.severity for each in report.diagnoses)
    words = [f"{counts[each]} {_VERDICTS[each][counts[each] > 1]}" for each in _VERDICTS if counts[each]]
    if not words:
        return ""
    number, _, rest = listed(words).partition(" ")
    return f"{number} {'thing' if number == '1' else 'things'} {rest}"


def _watched(run: Run) -> str:
    models = listed(list(dict.fromkeys(each.kind for each in run.models)))
    optimizers = [each.kind for each in run.optimizers]
    scalers = [f"{each.kind}{'' if each.enabled else ' (disabled)'}" for each in run.scalers]
    used = listed([*_several(optimizers), *(_several(scalers) or ["without a scaler"])])
    used = used.replace(" and without", ", without") if not scalers else used
    return f"{f' of {models}' if models else ''}{f', with {used}' if optimizers else ''}"


def _several(kinds: Sequence[str]) -> list[str]:
    """Name things of a kind once: "AdamW", "2 × AdamW"."""
    return [f"{number} × {kind}" if number > 1 else kind for kind, number in Counter(kinds).items()]


def _nothing(run: Run) -> str:
    forwards, backwards = run.counts.get("Forward", 0), run.counts.get("Backward", 0)
    seen = f"Seen were {counted(forwards, 'forward pass', 'es')} and {counted(backwards, 'backward pass', 'es')}."
    return (
        "No training step was seen: none of the watched optimizers was asked to step. "
        f"{seen if forwards or backwards else 'Nor was the model called.'} "
        "Is the loop inside the watch, and does it train the model and the optimizer that were given to it?"
    )


def facts(report: Report) -> Iterator[str]:
    """Yield how the scale and the losses went, a sentence each."""
    if report.run.steps:
        yield from _skipped(report.run)
        yield from _losses(report.run)


def remarks(report: Report) -> Iterator[str]:
    """Yield what else is to be said: how the run ended, what could not be watched or judged."""
    if report.ended:
        yield f"The run ended with {report.ended}."
    for note in report.run.notes:
        begin = "" if note.startswith("A replay") else "Not watched: "
        yield f"{begin}{shortened(note, LONG).rstrip('.')}."
    for id, error in report.failed:
        yield f"Could not be judged: {id} (its rule failed with {error.rstrip('.')})."


def hint(report: Report) -> str | None:
    """Say where there is more to read."""
    return _FULL if report.diagnoses else None


def _skipped(run: Run) -> Iterator[str]:
    """Say which steps were skipped, at which scale, and which scale was the last."""
    if not any(each.enabled for each in run.scalers):
        return
    ended = _last_scale(run)
    scale = (
        f"; the loss scale {'ended at' if run.scales else 'was'} {in_words(ended)}"
        if ended is not None
        else ""
    )
    if not run.skips:
        yield f"No step was skipped{scale}."
        return
    number = len(set(run.skips))
    were = f"{counted(number, 'step')} {'was' if number == 1 else 'were'} skipped"
    which = "all of them" if number == run.steps > 1 else steps_in_words(run.skips)
    yield f"{were} ({which}){_at_scales(run)}{scale}."


def _at_scales(run: Run) -> str:
    scales = [each for step in run.skips if (each := _scale_at(run, step)) is not None]
    if len(set(scales)) > 1:
        return f", at loss scales from {in_words(max(scales))} to {in_words(min(scales))}"
    return f", at a loss scale of {in_words(scales[0])}" if scales else ""


def _scale_at(run: Run, step: int) -> float | None:
    """Return the scale that a step ran with: what the last update before it had left."""
    scale = run.scalers[0].scale if run.scalers else None
    for changed, after in run.scales:
        if changed >= step:
            break
        scale = after
    if scale is None:
        first = next(run.of(Updated), None)
        scale = read(first.before) if first else None
    return scale


def _last_scale(run: Run) -> float | None:
    return run.scales[-1][1] if run.scales else _scale_at(run, run.steps + 1)


def _losses(run: Run) -> Iterator[str]:
    """Say whether the losses were finite, as far as they were kept."""
    looked = [(each.step, read(each.finite)) for each in run.of(Backward) if each.how == "backward"]
    known = [(step, finite) for step, finite in looked if finite is not None]
    if not known:
        return
    bad = [step for step, finite in known if not finite]
    steps = len({step for step, _ in known})
    if bad:
        yield f"The loss was infinite or NaN in {'steps' if len(set(bad)) > 1 else 'step'} {steps_in_words(bad)}."
    elif steps >= run.steps:
        yield "All losses were finite."
    else:
        where = f"all {steps:,} steps that were" if steps > 1 else "the step that was"
        yield f"The losses were finite in {where} looked at."
