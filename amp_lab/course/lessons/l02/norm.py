"""Exercise 2.1: a norm whose squares and whose size FP16 does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Trial, alike
from amp_lab.course.lessons.l02 import nearness

_RTOL = 1e-5
_TOP = 65504.0
_TWO_DIGITS = 1e-2
_BORDER = 16.0  # how much larger, in squares, what is lost may be than what is not
_MOST = 300  # elements: so many are right to five digits in whichever order FP32 adds their squares


def _normal(*shape: int, size: float = 1.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(math.prod(shape))
    return (size * torch.randn(shape, generator=draw)).half()


def _signs(*shape: int, size: float) -> torch.Tensor:
    """Make numbers of one size and both signs."""
    return torch.copysign(torch.full(shape, size), _normal(*shape)).half()


def _cases() -> tuple[tuple[torch.Tensor], ...]:
    """Choose inputs by where a square, a sum of squares or a norm leaves FP16; the plainest come first."""
    return (
        (_normal(40, size=3.0),),
        (_normal(6, 50),),
        (_normal(2, 3, 4, size=0.1),),
        (_normal(5, 7).t(),),
        (torch.tensor(-3.25).half(),),
        (_signs(200, size=0.3),),
        (_signs(8, 8, size=300.0),),  # squares overflow
        (_signs(100, size=100.0),),  # only their sum does
        (_signs(16, size=30000.0),),  # even the norm does
        (torch.tensor([[_TOP], [-_TOP]]).half(),),
        (_signs(64, size=1e-4),),  # squares underflow
        (_signs(2, 5, size=2.0**-24),),
        (torch.tensor([60000.0, 1e-4, -45000.0, 2.0**-24]).half(),),
        (_normal(_MOST),),  # long: a sum in FP16 stands still
        (torch.tensor([_TOP] + [11.0] * (_MOST - 1)).half(),),  # as hard as it gets for a sum in FP32
        (torch.zeros(3, 2).half(),),
        (torch.zeros(()).half(),),
    )


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _root(total: torch.Tensor | float) -> float:
    return math.sqrt(total) if total >= 0 else math.nan


def _one_by_one(squares: torch.Tensor) -> float:
    """Add the squares one after the other to a number that is kept in FP16."""
    total = np.float16(0)
    with np.errstate(over="ignore"):
        for square in squares.flatten().numpy().astype(np.float32):
            total = np.float16(np.float32(total) + square)
    return float(total)


def _spectral(x: torch.Tensor) -> float:
    """Do what `torch.linalg.norm(x.float(), 2)` does: for a matrix, 2 means the largest singular value."""
    return float(torch.linalg.matrix_norm(x.double(), 2)) if x.dim() == 2 else _norm(x)


# What FP16 makes of it, if it is used for the squares, for their sum, or for the norm alone.
_TOO_NARROW: nearness.Ideas = (
    ("squares-in-fp16", lambda x: _root((x * x).double().sum())),
    ("squares-in-fp16", lambda x: _root((x * x).sum())),
    ("squares-in-fp16", lambda x: float((x * x).sum().sqrt())),
    ("squares-in-fp16", lambda x: _root(_one_by_one(x * x))),
    ("sum-in-fp16", lambda x: _root(x.double().square().sum().half())),
    ("sum-in-fp16", lambda x: float(x.double().square().sum().half().sqrt())),
    ("sum-in-fp16", lambda x: _root(_one_by_one(x.float().square()))),
    ("norm-in-fp16", lambda x: float(torch.tensor(_norm(x)).half())),
)
_OTHER_NORMS: tuple[tuple[str, Callable[[torch.Tensor], float]], ...] = (
    ("the sum of the squares, without its root", lambda x: _norm(x) ** 2),
    ("the sum of the sizes (the 1-norm)", lambda x: float(x.double().abs().sum())),
    ("the largest size (the ∞-norm)", lambda x: float(x.double().abs().max())),
    ("the root of the *mean* of the squares", lambda x: _norm(x) / math.sqrt(x.numel())),
    ("the size of the sum", lambda x: abs(float(x.double().sum()))),
    ("the sum, without squares", lambda x: float(x.double().sum())),
    ("the largest singular value, which `ord=2` means for a matrix", _spectral),
)


def _of_rows(dim: int, combine: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], float]:
    """Return what puts the norms along one dimension together, and not the elements."""
    return lambda x: float(combine(torch.linalg.vector_norm(x.double(), dim=dim)))


_OF_ROWS = tuple(
    (f"the {name} of the norms along dimension {dim}", _of_rows(dim, combine))
    for dim in (-1, 0)
    for name, combine in (("largest", torch.max), ("sum", torch.sum), ("mean", torch.mean))
)


@checker("2.1")
def safe_norm(ask: Ask) -> None:
    """Ask for inputs of every size and shape; what went wrong shows in which of them came out infinite, zero or NaN."""
    ask.compare(_cases(), _norm, (), read=_read, otherwise=_judge)


def _read(call: str, got: Any, want: float) -> float:
    if type(got) is torch.Tensor and got.dtype == torch.float16 and got.dim() == 0:
        raise Mistake("returns-fp16", call=call, got=describe(got), want=f"{want:.9g}")
    value = float(expect.tensor_like(call, got, torch.tensor(want)))
    return nearness.snapped(value, want, _RTOL)


def _judge(trials: Sequence[Trial]) -> None:
    _recognise_zeros(trials)
    nearness.recognise(trials, _TOO_NARROW)
    for which, idea in (*_OTHER_NORMS, *_OF_ROWS):
        for diagnosis, seen in (("another-norm", idea), ("another-norm", _through_fp16(idea))):
            if all(nearness.is_near(trial.got, seen(*trial.args)) for trial in trials):
                raise Mistake(diagnosis, **nearness.shown(trials), which=which)
    _recognise_lost_range([trial for trial in trials if trial.want])


def _through_fp16(idea: Callable[[torch.Tensor], float]) -> Callable[[torch.Tensor], float]:
    return lambda x: float(torch.tensor(idea(x)).half())


def _recognise_zeros(trials: Sequence[Trial]) -> None:
    """Recognise what shows in zeros alone: 0 / 0, and a number that was added for safety."""
    zeros = [trial for trial in trials if not trial.want and not alike(trial.got, trial.want)]
    if zeros and 0 < zeros[0].got < math.inf:
        raise Mistake("adds-eps", **nearness.shown(zeros))
    if zeros and all(alike(trial.got, trial.want) for trial in trials if trial.want):
        diagnosis = "zero-over-zero" if math.isnan(zeros[0].got) else "wrong-value"
        raise Mistake(diagnosis, **nearness.shown(zeros))


def _recognise_lost_range(trials: Sequence[Trial]) -> None:
    """Say what is lost when no idea explains it all: the largest norms, the smallest, or the fourth digit."""
    wrong = [trial for trial in trials if not alike(trial.got, trial.want)]
    if not wrong:
        return
    far = [trial for trial in wrong if not nearness.is_near(trial.got, trial.want, _TWO_DIGITS)]
    for diagnosis, found in _kinds_of_loss(far, trials):
        if found:
            raise Mistake(diagnosis, **nearness.shown(found))
    if not far:
        raise Mistake("rounded-on-the-way", **nearness.shown(wrong))


def _kinds_of_loss(far: Sequence[Trial], trials: Sequence[Trial]) -> Iterator[tuple[str, Sequence[Trial]]]:
    beyond = [trial for trial in far if not math.isfinite(trial.got)]
    too_large = [trial for trial in far if trial.want > _TOP]
    at_top = too_large if all(trial.got == _TOP for trial in too_large) else []
    yield "leaves-the-range", beyond
    yield "held-at-the-top", at_top
    yield "small-lost", far if _are_smallest(far, trials) else ()


def _are_smallest(far: Sequence[Trial], trials: Sequence[Trial]) -> bool:
    """Tell whether what is far off has smaller elements, by their mean square, than all that is about right.

    At the border it is a matter of luck which of two inputs comes out right: they may be the wrong way round.
    """
    about_right = [trial for trial in trials if trial not in far]
    return bool(far and about_right) and max(map(_mean_square, far)) < _BORDER * min(
        map(_mean_square, about_right)
    )


def _mean_square(trial: Trial) -> float:
    return float(trial.args[0].double().square().mean())
