"""Exercise 1.2: the limits of a format, from the widths of its fields."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Misconceptions, Mistake, Trial
from amp_lab.formats import FormatLimits

# FP16, BF16, FP32, TF32, E5M2, then small ones, down to the smallest with all kinds of number. None is so wide that a
# right formula would leave the floats of Python on its way, as 2.0 ** 1024 does.
_CASES = ((5, 10), (8, 7), (8, 23), (8, 10), (5, 2), (4, 3), (3, 4), (3, 2), (6, 9), (2, 1))
_ALL = tuple(itertools.product(range(2, 9), range(1, 24)))


def _limits(exponent_bits: int, fraction_bits: int) -> FormatLimits:
    bias = 2 ** (exponent_bits - 1) - 1
    eps, smallest_normal = 2.0**-fraction_bits, 2.0 ** (1 - bias)
    return FormatLimits((2 - eps) * 2.0**bias, smallest_normal, smallest_normal * eps, eps)


def _max(exponent_bits: int, fraction_bits: int, *, significand: float) -> float:
    return math.ldexp(significand, 2 ** (exponent_bits - 1) - 1)


# What is wrong with the exponents shows in two limits at once: by which factors.
_EXPONENTS = (("bias-large", 0.5, 0.5), ("bias-small", 2.0, 2.0), ("exponents", 2.0, 0.5))
_OF_ONE_LIMIT: dict[str, Misconceptions] = {
    "eps": (
        ("eps-half", lambda e, f: 2.0 ** -(f + 1)),
        ("eps-double", lambda e, f: 2.0 ** -(f - 1)),
        ("eps-steps", lambda e, f: 1 / (2**f - 1)),
        ("eps-smallest", lambda e, f: _limits(e, f).smallest_subnormal),
    ),
    "max": (
        ("top-exponent", lambda e, f: 2 * _limits(e, f).max),
        ("no-fraction", lambda e, f: _max(e, f, significand=1.0)),
        ("next-power", lambda e, f: _max(e, f, significand=2.0)),
        ("max-whole", lambda e, f: 2 * 2 ** (2 ** (e - 1) - 1) - 1),
        ("max-whole", lambda e, f: 2 * 2.0 ** (2 ** (e - 1) - 1) - 1),
        ("one-step-short", lambda e, f: _max(e, f, significand=2 - 2 * 2.0**-f)),
    ),
    "smallest_normal": (
        ("normal-from-zero", lambda e, f: _limits(e, f).smallest_normal / 2),
        ("normal-is-subnormal", lambda e, f: _limits(e, f).smallest_subnormal),
    ),
    "smallest_subnormal": (
        ("subnormal-half", lambda e, f: _limits(e, f).smallest_subnormal / 2),
        ("subnormal-is-normal", lambda e, f: _limits(e, f).smallest_normal),
        ("subnormal-double", lambda e, f: _limits(e, f).smallest_subnormal * 2),
    ),
}


# Biases that a slip makes of 2 ** (exponent_bits - 1) - 1. In Python, `^` binds less tightly than `-`.
_BIASES: tuple[tuple[str, Callable[[int], int], str], ...] = (
    ("bias-xor", lambda e: 2 ^ (e - 1) - 1, "2 ^ (exponent_bits - 1) - 1"),
    ("bias-xor", lambda e: (2 ^ (e - 1)) - 1, "(2 ^ (exponent_bits - 1)) - 1"),
    ("bias-fixed", lambda e: 15, "15"),
    ("bias-fixed", lambda e: 127, "127"),
    ("bias-parentheses", lambda e: 2**e - 1 - 1, "2 ** exponent_bits - 1 - 1"),
    ("bias-parentheses", lambda e: 2**e - 1, "2 ** exponent_bits - 1"),
    ("bias-parentheses", lambda e: 2 ** (e - 1 - 1), "2 ** (exponent_bits - 1 - 1)"),
)


@checker("1.2")
def format_limits(ask: Ask) -> None:
    """Ask for formats that exist and for small ones, and compare limit by limit; then for all that there are."""
    ask.compare(_CASES, _limits, (), read=_read, otherwise=_judge)
    for case, answer in zip(_ALL, ask.many(_ALL), strict=True):
        call, want = ask.in_words(*case), _limits(*case)
        trial = Trial(call, case, _read(call, answer, want), want)
        for name in FormatLimits._fields:  # one format shows no idea: many give the same for it
            expect.recognise([_one_limit(trial, name)], (), otherwise=_show)


def _read(call: str, got: Any, want: FormatLimits) -> FormatLimits:
    if _is_called_alike(got):
        raise Mistake("another-class", call=call, got=describe(got))
    if got is not None and type(got) is not FormatLimits:
        raise Mistake("no-format-limits", call=call, got=describe(got), kind=kind(got))
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a `FormatLimits`")
    for name, value in got._asdict().items():
        if value is None:
            raise Mistake("wrong-limit", call=f"{call} with its `{name}`", got=None, want=getattr(want, name))
    calls = (f"{call}, for `{name}`," for name in FormatLimits._fields)
    return FormatLimits(*map(expect.number, calls, got, want))


def _is_called_alike(got: Any) -> bool:
    name = type.__getattribute__(type(got), "__name__")
    return type(got) is not FormatLimits and name == FormatLimits.__name__


def _judge(trials: Sequence[Trial]) -> None:
    """Raise the `Mistake` of the first limit that is wrong, in the order in which they rest on one another."""
    _judge_limit(trials, "eps")
    _judge_exponents(trials)
    for name in ("max", "smallest_normal", "smallest_subnormal"):
        _judge_limit(trials, name)


def _judge_exponents(trials: Sequence[Trial]) -> None:
    for diagnosis, largest, normal in _EXPONENTS:
        expected = [(trial.want.max * largest, trial.want.smallest_normal * normal) for trial in trials]
        if [(trial.got.max, trial.got.smallest_normal) for trial in trials] == expected:
            first = trials[0]
            shown = {"call": _of(first, "max"), "got": first.got.max, "want": first.want.max}
            raise Mistake(diagnosis, **shown, normal=first.got.smallest_normal)
    _judge_biases(trials)


def _judge_biases(trials: Sequence[Trial]) -> None:
    """Recognise another bias by `max` and `smallest_normal` together, however the largest exponent was found."""
    seen = [(trial.got.max, trial.got.smallest_normal) for trial in trials]
    for diagnosis, bias, formula in _BIASES:
        if seen in (_with_bias(trials, bias, from_field=True), _with_bias(trials, bias, from_field=False)):
            of_max = [_one_limit(trial, "max") for trial in trials]
            raise Mistake(diagnosis, **expect.first_wrong(of_max), formula=formula)


def _with_bias(
    trials: Sequence[Trial], bias: Callable[[int], int], *, from_field: bool
) -> list[tuple[float, float]]:
    """Return `max` and `smallest_normal` as another bias has them, which some take for the largest exponent, too."""

    def limits(exponent_bits: int, fraction_bits: int) -> tuple[float, float]:
        wrong = bias(exponent_bits)
        largest = 2**exponent_bits - 2 - wrong if from_field else wrong
        return (2 - 2.0**-fraction_bits) * 2.0**largest, 2.0 ** (1 - wrong)

    return [limits(*trial.args) for trial in trials]


def _judge_limit(trials: Sequence[Trial], name: str) -> None:
    of_one = [_one_limit(trial, name) for trial in trials]
    expect.recognise(of_one, _OF_ONE_LIMIT[name], otherwise=_show)


def _one_limit(trial: Trial, name: str) -> Trial:
    return Trial(_of(trial, name), trial.args, getattr(trial.got, name), getattr(trial.want, name))


def _of(trial: Trial, name: str) -> str:
    return trial.call.removesuffix("`") + f".{name}`"


def _show(trials: Sequence[Trial]) -> None:
    raise Mistake("wrong-limit", **expect.first_wrong(trials))
