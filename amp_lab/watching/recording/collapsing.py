"""A loss scale that has sunk to nothing: the run learns nothing any more, and is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from amp_lab.watching.recording.events import BadGradients
from amp_lab.watching.recording.readings import Readings

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder

SMALLEST: Final = 2.0**-24  # the smallest number above 0 that FP16 has
IN_A_ROW: Final = 12  # skips: 2^16 rarely needs more to find its place
_TOGETHER: Final = 16  # turns of which a GPU tells at a time
_TAKEN: Final = float("inf")
_ID: Final = "scale-collapse"  # the rule


class ScaleCollapsed(FloatingPointError):
    """The loss scale has sunk below `min_scale`, and step after step is skipped. Raised by `scaler.update()`.

    Nothing is lost: weights and optimizer are as they were before the first of the skipped steps, and the scaler has
    finished its turn. (Running averages of BatchNorm have gone on, as in every skipped step.) What the message says of
    the cause, `seen.report()` says in full, and `seen.overflows` if `amp_lab.watch` was given `replay`. Once that is
    mended, give the scaler a scale again, `scaler.update(2.0**16)`, and go on.

    After a fused optimizer on a GPU, the GPU alone knows what was skipped. It is not waited for: the numbers are sent
    along, and this is raised up to 32 steps later.
    """


class Collapsing:
    """Counts for each scaler how many of its turns in a row were skipped, and ends the run when the scale is gone.

    Nothing waits for a GPU before so many turns in a row were skipped; whether they were, its scaler has asked itself.
    """

    def __init__(self, min_scale: float | None) -> None:
        self._min_scale = min_scale
        self._of: dict[int, _Turns] = {}

    def stepped(self, scaler: int, skipped: float | torch.Tensor) -> None:
        """A scaler was asked for a step. A tensor tells later whether it was skipped."""
        if self._min_scale is None:
            return
        turns = self._of.get(scaler)
        if turns is None:
            turns = self._of[scaler] = _Turns(self._min_scale)
        turns.asked.append(skipped)

    def updated(self, recorder: Recorder, scaler: int, scale: float | torch.Tensor) -> None:
        """The scaler's turn is over.

        Raises:
            ScaleCollapsed: if the run is to end.
        """
        turns = self._of.get(scaler)
        if turns is None or self._min_scale is None or not turns.asked:
            return
        turns.end(scale)
        if turns.sunk is not None:
            value, many = turns.sunk, turns.in_a_row
            turns.begin_anew()  # a loop that goes on is told again, later
            raise ScaleCollapsed(_said(recorder, value, many, self._min_scale))


class _Turns:
    """The turns of one scaler, each from its first `step` to its `update`."""

    def __init__(self, min_scale: float) -> None:
        self._min_scale = min_scale
        self.asked: list[float | torch.Tensor] = []  # in this turn, for each optimizer whether it was skipped
        self.begin_anew()

    def begin_anew(self) -> None:
        self.in_a_row = 0
        self.sunk: float | None = None  # the scale, once it is below the smallest
        self._later = Readings(self._told, _TOGETHER)

    def end(self, scale: float | torch.Tensor) -> None:
        """A turn has ended with this scale."""
        asked, self.asked = self.asked, []
        known = [each > 0 for each in asked if not isinstance(each, torch.Tensor)]
        unknown = [each for each in asked if isinstance(each, torch.Tensor)]
        if not all(known):
            self._later.add(0, _TAKEN)
        elif unknown:
            self._later.add(0, _scale_if_all(unknown, scale))
        else:
            self._skipped(scale)

    def _skipped(self, scale: float | torch.Tensor) -> None:
        """A turn was skipped, and the scaler has asked its GPU for that. So it is not often that it is asked again."""
        self.in_a_row += 1
        if self.in_a_row >= IN_A_ROW:
            self._judge(float(scale))

    def _told(self, step: int, scale: float) -> None:
        """What a GPU has found of a turn is there: the scale after it if it was skipped, else infinity."""
        self.in_a_row = 0 if scale == _TAKEN else self.in_a_row + 1
        if self.in_a_row >= IN_A_ROW:
            self._judge(scale)
        else:
            self.sunk = None

    def _judge(self, scale: float) -> None:
        self.sunk = scale if scale < self._min_scale else None


def _scale_if_all(skipped: list[torch.Tensor], scale: float | torch.Tensor) -> torch.Tensor:
    """Return the scale if all of these are above 0, else infinity: on their device, without waiting for it."""
    device = skipped[0].device
    least = torch.stack([each.to(device, torch.float32, non_blocking=True) for each in skipped]).amin()
    value = scale.to(device, torch.float32, non_blocking=True) if isinstance(scale, torch.Tensor) else scale
    return torch.where(least > 0, value, _TAKEN)


def _said(recorder: Recorder, scale: float, many: int, min_scale: float) -> str:
    why = recorder.quietly("report", _why, recorder) or "Look for what makes the gradients infinite or NaN."
    return (
        f"the loss scale has sunk to {_power(scale)}, below min_scale = {_power(min_scale)}, and the last {many:,} "
        f"steps were all skipped: no scale cures this. {why} Weights and optimizer are as they were before these "
        "steps; when the cause is mended, scaler.update(2.0**16) gives a scale to go on with. (To let the loop run on "
        "as it is: amp_lab.watch(..., min_scale=None).)"
    )


def _power(scale: float) -> str:
    mantissa, exponent = torch.frexp(torch.tensor(scale, dtype=torch.float64))
    return f"2^{int(exponent) - 1}" if mantissa.item() == 0.5 else f"{scale:.3g}"


def _why(recorder: Recorder) -> str | None:
    """Return the sentence of the root cause, and what to do."""
    from amp_lab.watching.report import diagnose

    run = recorder.run()
    for each in diagnose(run).diagnoses:
        if each.id != _ID and _ID in (below.id for below in each.consequences):
            fix = each.finding.fix
            return f"{each.sentence} {fix.say if fix is not None else ''}".rstrip()
    bad = next(run.of(BadGradients), None)
    which = "Gradients are" if bad is None else f"In step {bad.step:,} the gradients of {_which(bad)} are"
    ask = (
        "Give amp_lab.watch a function that returns the loss of the batch at hand, replay=..., and it says where that "
        "begins."
    )
    return f"{which} infinite or NaN. {ask if recorder.replaying is None else ''}".rstrip()


def _which(bad: BadGradients) -> str:
    named = ", ".join(f"`{each}`" for each in bad.which)
    return f"{bad.bad:,} of {bad.of:,} parameters ({named}{', …' if bad.bad > len(bad.which) else ''})"
