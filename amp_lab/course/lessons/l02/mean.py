"""Exercise 2.5: a mean over more numbers than FP16 can add."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Trial, alike
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l02 import nearness

Batches = list[torch.Tensor]
_RTOL = 1e-6
_SMALL = 1e-4  # a mean below: what FP16 makes of its numbers is another matter
_IN_FP32 = 5e-5  # many roundings of FP32, and less than one of FP16
_SOME_ROUNDINGS = 2e-2  # of FP16, one for each of a few elements
_SHORT = 20  # elements: so few do not make a sum or a mean in FP16 stand still
_SHOWN = 4  # how many batches are described


def _values(*shape: int, about: float, spread: float = 0.25) -> torch.Tensor:
    """Draw numbers around one that is not zero, so that sums lose no digits by cancelling."""
    draw = torch.Generator().manual_seed(7 + math.prod(shape))
    return (about * (1 + spread * (2 * torch.rand(shape, generator=draw) - 1))).half()


def _plain() -> Batches:
    return [_values(8, about=2.0), _values(8, about=3.0)]


def _unequal() -> Batches:
    return [_values(90, about=1.0), _values(3, about=9.0), _values(30, about=2.0)]


def _mixed() -> Batches:
    return [
        _values(3, 4, about=2.0),
        _values(5, about=7.0),
        _values(2, 1, 2, about=0.5),
        torch.tensor(11.0).half(),
    ]


def _with_empty() -> Batches:
    return [_values(5, about=2.0), torch.empty(0).half(), torch.empty(2, 0).half(), _values(3, about=6.0)]


def _long_in_fp32() -> Batches:
    """Make a first batch that adds up to 2^24, where FP32 numbers lie 2 apart, and many of one element below 1."""
    return [torch.full((512,), 2.0**15).half(), *(torch.tensor([0.75]).half() for _ in range(400))]


def _lists() -> tuple[tuple[Batches], ...]:
    """Choose batches by what goes wrong: the fourth digit, sums beyond 65504 or that stand still, numbers near 0."""
    return (
        (_plain(),),
        (_unequal(),),
        ([_values(300, about=500.0)],),  # the sum of one batch overflows
        ([_values(50, about=400.0) for _ in range(6)],),  # only the sum of all does
        ([_values(100, about=350.0), *(torch.full((4,), 2.0).half() for _ in range(200))],),  # stands still
        ([torch.ones(4000).half(), torch.full((500,), 3.0).half()],),
        (_long_in_fp32(),),
        ([_values(400, about=2e-5), _values(40, about=1e-4)],),
        ([_values(6, about=-4.0)],),
        ([_values(3, 4, about=2.0), _values(2, 1, 5, about=5.0)],),
        (_mixed(),),
        (_with_empty(),),
    )


def _with_zeros() -> tuple[Batches, ...]:
    """Choose batches that add up to zero, each or all of them: that is not the same as to be empty."""
    ones, zeros = torch.ones(2).half(), torch.zeros(3).half()
    return (
        [zeros],
        [torch.zeros(2, 2).half(), torch.zeros(()).half()],
        [torch.cat([ones, -ones])],
        [ones, -ones],
        [zeros, ones, 2 * ones],
        [ones, torch.tensor([-2.0, 2.0]).half()],
    )


def _mean(batches: Batches) -> float:
    return math.fsum(_numbers(batches)) / _count(batches)


def _numbers(batches: Batches) -> Iterator[float]:
    return (number for batch in batches for number in batch.flatten().tolist())


def _count(batches: Batches) -> int:
    return sum(batch.numel() for batch in batches)


def _means(batches: Batches) -> list[float]:
    """Return the mean of each batch that has one."""
    return [float(batch.double().mean()) for batch in batches if batch.numel()]


def _mean_of_means(batches: Batches) -> float:
    means = _means(batches)
    return sum(means) / len(means)


def _rows(batches: Batches) -> int:
    return sum(len(batch) if batch.dim() else 1 for batch in batches)


def _added_in_fp16(terms: Iterable[float]) -> float:
    """Add to a total that is rounded to FP16 each time."""
    total = np.float16(0)
    with np.errstate(over="ignore", invalid="ignore"):
        for term in terms:
            total = np.float16(float(total) + term)
    return float(total)


def _sums(batches: Batches) -> list[float]:
    return [float(batch.double().sum()) for batch in batches]


def _half(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(number))


def _half_sums(batches: Batches) -> list[float]:
    return [_half(total) for total in _sums(batches)]


def _moving(start: str, share: float) -> Callable[[Batches], float]:
    """Return what a moving average gives that takes `share` of each new batch."""

    def average(batches: Batches) -> float:
        means = _means(batches)
        value = means[0] if start == "first" else 0.0
        for mean in means[1:] if start == "first" else means:
            value += share * (mean - value)
        return value

    return average


_SHARES = (0.5, 0.1, 0.9, 0.01, 0.99, 0.05, 0.95, 0.2, 0.8, 0.3, 0.7)
_IDEAS: nearness.Ideas = (
    ("mean-of-means", _mean_of_means),
    ("counts-batches", lambda batches: sum(_sums(batches)) / len(batches)),
    ("counts-rows", lambda batches: sum(_sums(batches)) / _rows(batches)),
    ("not-divided", lambda batches: sum(_sums(batches))),
    ("one-batch", lambda batches: _means(batches)[-1]),
    ("one-batch", lambda batches: _means(batches)[0]),
    *(("moving-average", _moving(start, share)) for start in ("first", "zero") for share in _SHARES),
    ("batch-sum-in-fp16", lambda batches: sum(_half_sums(batches)) / _count(batches)),
    ("total-in-fp16", lambda batches: _half(sum(_sums(batches))) / _count(batches)),
    ("total-in-fp16", lambda batches: _added_in_fp16(_sums(batches)) / _count(batches)),
    ("total-in-fp16", lambda batches: _added_in_fp16(_half_sums(batches)) / _count(batches)),
    ("total-in-fp16", lambda batches: _added_in_fp16(_numbers(batches)) / _count(batches)),
)


@checker("2.5")
def running_mean(ask: Ask) -> None:
    """Ask for lists, then for the same as generators, then for nothing at all."""
    ask.in_words = _in_words
    try:
        ask.compare(_lists(), _mean, (), read=_read, otherwise=_judge)
    except Contained as contained:
        _blame_the_empty_batch(ask.call, contained)
        raise
    for batches in _with_zeros():
        _ask_for_zeros(ask, batches)
    for batches in (_unequal(), _mixed(), _with_empty(), _plain()):
        _ask_for_generator(ask, batches)
    for nothing in (
        [],
        iter(()),
        [torch.empty(0).half()],
        (torch.empty(0, 3).half() for _ in "ab"),
    ):
        ask.refuses(ValueError, nothing)


def _ask_for_zeros(ask: Ask, batches: Batches) -> None:
    """Ask for a mean with zeros in it; what has none came out right, so any fault lies in them."""
    want = _mean(batches)
    try:
        got = ask(batches)
    except Contained as contained:
        if contained.fault != "exception" or isinstance(contained.error, NotImplementedError):
            raise
        raise Mistake("zero-for-nothing", call=ask.call, got=_raised(contained), want=want) from None
    number = _read(ask.call, got, want)
    if not alike(number, want):
        raise Mistake("zero-for-nothing", call=ask.call, got=f"returned {number:.9g}", want=want)


def _blame_the_empty_batch(call: str, contained: Contained) -> None:
    """Raise the `Mistake` of code that cannot take an empty batch among others; all other lists came out right."""
    unfinished = isinstance(contained.error, NotImplementedError)
    if call == _in_words(_with_empty()) and contained.fault == "exception" and not unfinished:
        raise Mistake("refuses-an-empty-batch", call=call, got=_raised(contained)) from None


def _raised(contained: Contained) -> str:
    return f"raised `{type(contained.error).__name__}: {contained.error}`"


def _in_words(batches: Iterable[torch.Tensor]) -> str:
    if type(batches) is not list:
        return "`running_mean(<a generator of batches>)`"
    if len(batches) < 2:
        return f"`running_mean({describe(batches)})`"
    sizes = ", ".join(str(batch.numel()) for batch in batches[:_SHOWN])
    dots = ", …" if len(batches) > _SHOWN else ""
    return f"`running_mean(<{len(batches)} batches of {sizes}{dots} elements>)`"


def _read(call: str, got: Any, want: float) -> float:
    number = expect.number(call, got, want)
    if abs(number) > sys.float_info.max and type(number) is int:
        raise Mistake(
            "wrong-value", call=call, got=describe(number), want=f"{want:.9g}"
        )  # no float is as large
    return nearness.snapped(float(number), want, _RTOL)


def _judge(trials: Sequence[Trial]) -> None:
    _recognise_empty(trials)
    # An empty batch makes a NaN of any mean that is taken of it: that says nothing about other ideas.
    trials = [trial for trial in trials if not (math.isnan(trial.got) and _has_empty(trial.args[0]))]
    nearness.recognise(trials, _IDEAS)
    _recognise_rounding_at_the_end(trials)
    _recognise_fp32(trials)
    if all(nearness.is_near(trial.got, trial.want) for trial in trials if abs(trial.want) > _SMALL):
        small = [trial for trial in trials if not nearness.is_near(trial.got, trial.want)]
        raise Mistake("small-lost" if small else "rounded-on-the-way", **nearness.shown(small or trials))
    beyond = [trial for trial in trials if not math.isfinite(trial.got)]
    if beyond:
        raise Mistake("overflows", **nearness.shown(beyond))
    _recognise_fp16_mean(trials)


def _recognise_fp32(trials: Sequence[Trial]) -> None:
    """Recognise a total or a mean in FP32, which is right but where many roundings add up."""
    if all(nearness.is_near(trial.got, trial.want, _IN_FP32) for trial in trials):
        raise Mistake("total-in-fp32", **nearness.shown(trials))


def _recognise_rounding_at_the_end(trials: Sequence[Trial]) -> None:
    """Recognise means that were rounded for show, to so many places or so many digits."""
    for places in range(10):
        for words, rounded in ((f"{places} places", "f"), (f"{places + 1} digits", "e")):
            if all(trial.got in (trial.want, float(f"{trial.want:.{places}{rounded}}")) for trial in trials):
                raise Mistake("rounded-for-show", **nearness.shown(trials), digits=words)


def _recognise_fp16_mean(trials: Sequence[Trial]) -> None:
    """Recognise a mean that is kept in FP16 and stands still: right where there are few elements, and FP16 always."""
    wrong = [trial for trial in trials if not alike(trial.got, trial.want)]
    short = [trial for trial in trials if _count(trial.args[0]) <= _SHORT and abs(trial.want) > _SMALL]
    in_fp16 = all(trial.got == _half(trial.got) for trial in wrong)
    if in_fp16 and all(nearness.is_near(trial.got, trial.want, _SOME_ROUNDINGS) for trial in short):
        raise Mistake("mean-in-fp16", **nearness.shown(wrong))


def _recognise_empty(trials: Sequence[Trial]) -> None:
    """Recognise a NaN that came from an empty batch, and from nothing else."""
    wrong = [trial for trial in trials if not alike(trial.got, trial.want)]
    nans = [trial for trial in wrong if math.isnan(trial.got)]
    if nans and nans == wrong and all(_has_empty(trial.args[0]) for trial in nans):
        raise Mistake("empty-batch", **nearness.shown(nans))


def _has_empty(batches: Batches) -> bool:
    return any(batch.numel() == 0 for batch in batches)


def _ask_for_generator(ask: Ask, batches: Batches) -> None:
    """Ask for batches that come one by one; lists came out right before, so any fault lies in how they are taken."""
    want = _mean(batches)
    try:
        got = ask(batch for batch in batches)
    except Contained as contained:
        if contained.fault != "exception" or isinstance(contained.error, NotImplementedError):
            raise
        raise Mistake(
            "needs-a-list" if type(contained.error) in (TypeError, AttributeError) else "walks-twice",
            call=ask.call,
            got=_raised(contained),
        ) from None
    number = _read(ask.call, got, want)
    if not alike(number, want):
        raise Mistake("walks-twice", call=ask.call, got=f"returned {number:.9g}, not {want:.9g}")
