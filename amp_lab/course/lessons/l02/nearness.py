"""What the checks of lesson 02 share: numbers that need not be right to the last bit, nor wrong to the last bit.

A right answer may be off by a rounding or two. `ask.compare` knows only equal and not equal, so a check *snaps* what is
near enough to the right number itself. An idea is recognised likewise: what somebody gets who has it depends on the
order of their sums, but an infinity, a zero or a mean of means shows in any order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from amp_lab.course.judging.expect import Mistake, Trial, alike

Ideas = Sequence[tuple[str, Callable[..., float]]]
_TIGHT = 1e-6  # some roundings of FP32
_LOOSE = 5e-3  # ten roundings of FP16


def snapped(got: float, want: float, rtol: float) -> float:
    """Return `want` if `got` is as near to it as the exercise asks for, else `got`."""
    return want if is_near(got, want, rtol) else got


def is_near(one: float, other: float, rtol: float = _LOOSE) -> bool:
    """Return whether two numbers differ by `rtol` of the second at most; NaN is near to NaN, infinity to itself."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return alike(one, other)
    return abs(one - other) <= rtol * abs(other)


def recognise(trials: Sequence[Trial], ideas: Ideas) -> None:
    """Raise `Mistake` for the first idea that gives just what the learner's code gave, or else comes near to it."""
    for rtol, (diagnosis, idea) in itertools.product((_TIGHT, _LOOSE), ideas):
        if all(is_near(trial.got, idea(*trial.args), rtol) for trial in trials):
            raise Mistake(diagnosis, **shown(trials))


def shown(trials: Sequence[Trial]) -> dict[str, str]:
    """Return what a sentence shows, `call`, `got` and `want`, of the first trial whose error catches the eye.

    That is one that is not finite; else one that is far off; else any.
    """
    wrong = [trial for trial in trials if not alike(trial.got, trial.want)]
    beyond = [trial for trial in wrong if not math.isfinite(trial.got)]
    far = [trial for trial in wrong if not is_near(trial.got, trial.want)]
    trial = (beyond or far or wrong)[0]
    return {"call": trial.call, "got": f"{trial.got:.9g}", "want": f"{trial.want:.9g}"}
