"""Which gradients were not finite in a skipped step, in words."""

from __future__ import annotations

from collections.abc import Collection

from amp_lab.watching.recording.events import BadGradients, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.words import counted, in_words, read


def first_bad(run: Run, steps: Collection[int]) -> BadGradients | None:
    """Return what was noted of the first of these steps."""
    return next((each for each in run.of(BadGradients) if each.step in steps), None)


def bad_in_words(event: BadGradients) -> str:
    """Write "those of all 12 parameters", "those of the first 3 of 12 parameters: `0.weight`, `0.bias`, …"."""
    if event.place == "all":
        return f"those of {'the only parameter' if event.of == 1 else f'all {event.of:,} parameters'}"
    which = f"the {event.place} {event.bad:,}" if event.place in ("first", "last") else f"{event.bad:,}"
    names = ", ".join(f"`{each}`" for each in event.which) + (", …" if event.bad > len(event.which) else "")
    return f"those of {which} of {counted(event.of, 'parameter')} ({names})"


def evidence(run: Run, steps: Collection[int]) -> dict[str, object]:
    """Return lines of evidence: which gradients, and whether they were not finite at the next scale either."""
    event = first_bad(run, steps)
    if event is None:
        return {}
    lines: dict[str, object] = {"gradients not finite": bad_in_words(event)}
    if again := _at_the_next_scale(run, event):
        lines["at the next scale"] = again
    return lines


def _at_the_next_scale(run: Run, event: BadGradients) -> str | None:
    """Say what the step after it brought; None if it is not known, or had the same scale."""

    def asked(step: int) -> Stepped | None:
        those = (each for each in run.of(Stepped) if each.step == step and each.optimizer == event.optimizer)
        return next(those, None)

    now, then = asked(event.step), asked(event.step + 1)
    if now is None or then is None or then.raised:
        return None
    scale = read(then.scale)
    if scale is None or scale == read(now.scale):
        return None
    later = next(
        (e for e in run.of(BadGradients) if (e.step, e.optimizer) == (then.step, then.optimizer)), None
    )
    if later is None:
        return None if read(then.skipped) else f"{in_words(scale)}, all finite"
    same = (later.which, later.bad) == (event.which, event.bad)
    return f"{in_words(scale)}, {'the same again' if same else bad_in_words(later)}"
