"""A loss scale that has sunk to nothing: the run learns nothing any more, and is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from amp_lab.watching.recording.events import BadGradients

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder

SMALLEST: Final = 2.0**-24  # the smallest number above 0 that FP16 has
IN_A_ROW: Final = 12  # skips: 2^16 rarely needs more to find its place
_ID: Final = "scale-collapse"  # the rule


class ScaleCollapsed(FloatingPointError):
    """The loss scale has sunk below `min_scale`, and step after step is skipped. Raised by `scaler.update()`.

    Nothing is lost: weights and optimizer are as they were before the first of the skipped steps, and `seen.report()`
    says what was found.
    """


class Collapsing:
    """Counts for each scaler how many of its turns in a row were skipped, and ends the run when the scale is gone.

    Nothing waits for a GPU before so many turns in a row were skipped; whether they were, its scaler has asked itself.
    """

    def __init__(self, min_scale: float | None) -> None:
        self._min_scale = min_scale
        self._in_a_row: dict[int, int] = {}
        self._turn: dict[int, bool] = {}  # whether all steps of the turn that runs were skipped

    def stepped(self, scaler: int, skipped: float | torch.Tensor) -> None:
        """A scaler was asked for a step. A tensor is not read: whether the step was skipped is unknown then."""
        was = not isinstance(skipped, torch.Tensor) and skipped > 0
        self._turn[scaler] = was and self._turn.get(scaler, True)

    def updated(self, recorder: Recorder, scaler: int, scale: float | torch.Tensor) -> None:
        """The scaler's turn is over.

        Raises:
            ScaleCollapsed: if the run is to end.
        """
        all_skipped = self._turn.pop(scaler, None)
        if self._min_scale is None or all_skipped is None:
            return
        self._in_a_row[scaler] = self._in_a_row.get(scaler, 0) + 1 if all_skipped else 0
        if self._in_a_row[scaler] < IN_A_ROW:
            return
        value = float(scale)
        if value < self._min_scale:
            many, self._in_a_row[scaler] = (
                self._in_a_row[scaler],
                0,
            )  # a loop that goes on is told again, later
            raise ScaleCollapsed(_said(recorder, value, many, self._min_scale))


def _said(recorder: Recorder, scale: float, many: int, min_scale: float) -> str:
    why = recorder.quietly("report", _why, recorder) or "Look for what makes the gradients infinite or NaN."
    return (
        f"the loss scale has sunk to {_power(scale)}, below min_scale = {_power(min_scale)}, and the last {many:,} "
        f"steps were all skipped: no scale cures this. {why} (To let the loop run on: amp_lab.watch(..., "
        "min_scale=None).)"
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
