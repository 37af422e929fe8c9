"""Exercise 3.3: which share of a gradient FP16 makes zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Region, Trial
from amp_lab.course.judging.guard import Contained

_ENOUGH = 1e-6  # a share may have been computed in FP32
_SMALLEST_NORMAL, _SMALLEST, _TIE = 2.0**-14, 2.0**-24, 2.0**-25
_ABOVE_TIE, _BELOW_TIE = _TIE * (1 + 2.0**-23), _TIE * (1 - 2.0**-24)  # its neighbours in FP32
_NEAR_TIE = (2.9801e-8, 2.95e-8, 2.985e-8, 3.1e-8, 3.5e-8)  # what a decimal of few digits gets wrong

Cases = tuple[tuple[torch.Tensor], ...]


def _cases(*rows: Sequence[float]) -> Cases:
    return tuple((torch.tensor(row, dtype=torch.float32),) for row in rows)


def _lost(grads: torch.Tensor) -> torch.Tensor:
    return (grads != 0) & (grads.half() == 0)


def _share(count: torch.Tensor, of: torch.Tensor | int) -> float:
    total = int(of.sum()) if isinstance(of, torch.Tensor) else of
    return int(count.sum()) / total if total else 0.0


def _right(grads: torch.Tensor) -> float:
    return _share(_lost(grads), grads != 0)


def _share_of_values(grads: torch.Tensor) -> float:
    return _right(torch.tensor(sorted(set(grads.tolist()))))


def _below(limit: float, *, with_limit: bool) -> Any:
    """Count as lost what is smaller than `limit`."""

    def share(grads: torch.Tensor) -> float:
        size = grads.abs().double()
        lost = (size <= limit if with_limit else size < limit) & (grads != 0)
        return _share(lost, grads != 0)

    return share


def _both(diagnosis: str, limit: float) -> expect.Misconceptions:
    return tuple((diagnosis, _below(limit, with_limit=each)) for each in (False, True))


def _say(diagnosis: str) -> expect.Otherwise:
    """Return what tells any wrong trial of a region as `diagnosis`."""

    def otherwise(trials: Sequence[Trial]) -> None:
        raise Mistake(diagnosis, **expect.first_wrong(trials))

    return otherwise


# Each region leaves out what later ones are about. How many entries there are, and how many nonzero ones, are powers of
# two: so the shares are exact, also if somebody computes them in FP32.
_REGIONS = (
    Region(
        _cases(
            [1.0, 0.1, 1e-12, 3e-9],
            [1e-3, 2e-3, 5e-4, 0.3, 1e-10, 1e-9, 1e-44, 1e-11],
            [0.1, 0.3, 0.7, 1e-30],
        ),
        (
            ("share-kept", lambda g: 1 - _right(g)),
            ("percent", lambda g: 100 * _right(g)),
            ("count", lambda g: float(_lost(g).sum())),
            ("over-survivors", lambda g: _share(_lost(g), g.half() != 0)),
            ("rounding-counted", lambda g: _share(g.half().float() != g, g != 0)),
            ("never-lost", lambda g: 0.0),
            ("loses-like-bf16", lambda g: _share(g.bfloat16() == 0, g != 0)),
            *_both("eps-limit", 2.0**-10),
        ),
    ),
    Region(
        _cases([-1.0, -0.1, -1e-12, 3e-9], [-1e-3, 2e-3, -0.5, -0.3]),
        (
            ("sign-ignored", lambda g: _share(g <= _TIE, g != 0)),
            ("sign-ignored", lambda g: _share((g > 0) & _lost(g), g != 0)),
            ("sign-ignored", lambda g: _share((g > 0) & _lost(g), g > 0)),
        ),
    ),
    Region(
        _cases([0.0, 0.0, 0.0, -0.0, 1.0, -1.0, 1e-12, 0.5], [0.0, 1.0], [0.0, 1e-12, 0.0, 0.0]),
        (
            ("zeros-counted", lambda g: _share(g.half() == 0, g.numel())),
            ("zeros-over-nonzero", lambda g: _share(g.half() == 0, g != 0)),
            ("all-entries", lambda g: _share(_lost(g), g.numel())),
        ),
    ),
    Region(
        _cases([1e-12, 1e-12, 1e-12, 1.0], [0.5, 0.5, 0.5, -1e-12]),
        (("equal-ones-merged", _share_of_values),),
    ),
    Region(
        _cases([1e5, 1.0, 1e-12, -3e38], [-65520.0, 7e4, 1e-12, 0.1]),
        (
            ("overflow-counted", lambda g: _share(_lost(g) | g.half().isinf(), g != 0)),
            ("overflow-left-out", lambda g: _share(_lost(g), (g != 0) & g.half().isfinite())),
        ),
    ),
    Region(
        _cases([5e-5, 1e-5, 1e-6, 1.2e-7], [_SMALLEST_NORMAL, 1e-12, 3e-5, 1.0], [-8e-8, 1.0, -2e-5, 1e-10]),
        _both("subnormals-lost", _SMALLEST_NORMAL),
        _say("another-limit"),
    ),
    Region(
        _cases([_SMALLEST, 1.0, -5e-8, 4e-8], [5.9e-8, 1e-12, 4.5e-8, 0.1], [-_SMALLEST, 4e-8]),
        _both("smallest-limit", _SMALLEST),
        _say("another-limit"),
    ),
    Region(_cases([2.0, 1e-8], [1.0, -1.5e-8, 2.5e-8, 1e-9]), (), _say("another-limit")),
    Region(_cases([_TIE, 1.0], [-_TIE, 2e-8, 1.0, 0.5]), (("tie-kept", _below(_TIE, with_limit=False)),)),
    Region(
        _cases([_ABOVE_TIE, 1.0], [-_BELOW_TIE, 1.0], *([near, 1.0] for near in _NEAR_TIE)),
        (),
        _say("near-limit"),
    ),
)


def _read(call: str, got: Any, want: float) -> float:
    share = expect.number(call, got, want)
    return want if math.isclose(share, want, rel_tol=_ENOUGH, abs_tol=_ENOUGH * (want > 0)) else share


def _judge_nothing(ask: Ask, grads: torch.Tensor) -> None:
    """Ask for a gradient with no nonzero entry, where a share would be 0 / 0."""
    try:
        got = ask(grads)
    except Contained as contained:
        if not isinstance(contained.error, (ArithmeticError, ValueError, RuntimeError, IndexError)):
            raise
        seen = f"raised `{type(contained.error).__name__}`"
    else:
        share = expect.number(ask.call, got, 0.0)
        if share == 0:
            return
        seen = f"returned {describe(share)}"
    raise Mistake("nothing-nonzero", call=ask.call, got=seen)


def _judge_large(ask: Ask, grads: torch.Tensor) -> None:
    """Ask for more entries than 16 bits can count; whatever else could be wrong has been asked for before."""
    got, want = ask(grads), _right(grads)
    if _read(ask.call, got, want) != want:
        raise Mistake("counts-in-16-bits", call=ask.call, got=describe(got), want=describe(want))


def _gradient(seed: int, shape: tuple[int, int] = (40, 25)) -> torch.Tensor:
    """Draw what looks like a gradient: sizes over many powers of ten, both signs, some zeros."""
    draw = torch.Generator().manual_seed(seed)
    size = 10 ** (torch.randn(shape, generator=draw) * 2 - 7)
    sign = torch.randint(-1, 2, size.shape, generator=draw)
    return size * sign


def _layouts() -> Cases:
    grads = _gradient(0)
    return (
        (grads,),
        (grads.t(),),
        (grads[:, ::3],),
        (grads.reshape(2, 5, 4, 25),),
        (torch.tensor(1e-9),),
        (torch.tensor(1.0),),
        (_gradient(1)[:, 0],),
    )


@checker("3.3")
def lost_fraction(ask: Ask) -> None:
    """Ask limit by limit; then for gradients without a nonzero entry, and for large ones of all shapes."""
    cases = [case for region in _REGIONS for case in region.cases]
    ask.compare(cases, _right, (), read=_read, otherwise=expect.region_by_region(_REGIONS))
    for nothing in (torch.zeros(4), torch.tensor([0.0, -0.0]), torch.zeros(2, 0), torch.zeros(())):
        _judge_nothing(ask, nothing)
    ask.compare(_layouts(), _right, (), read=_read)
    _judge_large(ask, _gradient(2, shape=(350, 301)))
