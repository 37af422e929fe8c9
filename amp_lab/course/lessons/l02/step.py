"""Exercise 2.3: the smallest step that moves an FP16 number."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Misconceptions, Mistake, Trial, alike

_CASES_S, _FULL_SWEEP_S = 4.0, 2.0
_FEWEST = 4  # of the cases, which are asked for however slow an answer is
_LARGEST_BATCH = 1024
_ONE, _LAST = 0x3C00, 0x7800  # the patterns of 1 and 32768
_ALL: list[float] = np.arange(_ONE, _LAST + 1, dtype=np.uint16).view(np.float16).astype(float).tolist()
_SMALLEST, _LARGEST = 2.0**-24, 65504.0

# Even and odd last bits, powers of two, both signs: some of each come first.
_FIRST = (1.0, 100.0625, -1.0, -3.0)
_SIZES = (1.0, 1.5, 1 + 2**-10, 3.0, 2 - 2**-10, 100.0625, 1000.5, 1025.0, 2048.0, 5000.0, 32752.0, 32768.0)
_OTHERS = (sign * size for sign in (1.0, -1.0) for size in _SIZES if sign * size not in _FIRST)
_CASES = tuple((w,) for w in (*_FIRST, *_OTHERS))


def _power(w: float) -> float:
    """Return the largest power of two that is not beyond |w|."""
    return float(2.0 ** (math.frexp(w)[1] - 1))


def _spacing(w: float) -> float:
    return _power(w) * 2.0**-10


def _gap(w: float) -> float:
    """Return the distance from `w` to the next larger FP16 number; below a power of two it is half as long."""
    return _spacing(w) / 2 if w == -_power(w) else _spacing(w)


def _is_even(w: float) -> bool:
    """Tell whether the last bit of `w` is 0."""
    return w / _spacing(w) % 2 == 0


def _just_above(number: float) -> float:
    """Return the next larger FP16 number to a power of two of 2^-14 or more."""
    return number * (1 + 2.0**-10)


def _step(w: float) -> float:
    half = _gap(w) / 2
    # A tie goes to the even neighbour: away from an odd number, and back to an even one.
    return _just_above(half) if _is_even(w) else half


def _ties_to_odd(w: float) -> float:
    half = _gap(w) / 2
    return half if _is_even(w) else _just_above(half)


def _halving(w: float) -> float:
    """Find the last power of two that still moves `w`, as by halving a step until it does nothing."""
    return _gap(w) if _is_even(w) else _gap(w) / 2


def _largest_lost(w: float) -> float:
    """Return the last step that does nothing, next to the first that moves `w`."""
    half = _gap(w) / 2
    return half if _is_even(w) else half * (1 - 2.0**-11)


def _of_size(idea: Callable[[float], float]) -> Callable[[float], float]:
    return lambda w: idea(abs(w))


_MISCONCEPTIONS: Misconceptions = (
    ("whole-gap", _gap),
    ("whole-gap", _spacing),
    ("whole-gap", lambda w: _gap(-w)),
    ("half-gap", lambda w: _gap(w) / 2),
    ("half-gap", lambda w: _spacing(w) / 2),
    ("half-gap", lambda w: _gap(-w) / 2),
    ("above-half-always", lambda w: _just_above(_gap(w) / 2)),
    ("above-half-always", lambda w: _just_above(_spacing(w) / 2)),
    ("largest-lost", _largest_lost),
    ("ties-to-odd", _ties_to_odd),
    ("ties-to-odd", _of_size(_ties_to_odd)),
    ("downward", lambda w: _step(-w)),
    ("downward", lambda w: _step(-abs(w))),
    ("sign-ignored", _of_size(_step)),
    ("powers-of-two-only", _halving),
    ("powers-of-two-only", _of_size(_halving)),
)


@checker("2.3")
def smallest_effective_step(ask: Ask) -> None:
    """Ask for chosen weights, then for all that there are, as long as it is quick: a slow search is right, too."""
    ask.compare(_cases_while_quick(), _step, _MISCONCEPTIONS, read=_read, otherwise=_judge)
    for (w,), answer in ask.many_while(_batches(), _FULL_SWEEP_S):
        want = _step(w)
        if type(answer) is float and answer == want:
            continue  # the common case, first: there may be 30,722 of them
        call = ask.in_words(w)
        expect.recognise([Trial(call, (w,), _read(call, answer, want), want)], (), otherwise=_recognise_alone)


def _read(call: str, got: Any, want: float) -> float:
    number = expect.number(call, got, want)
    if not 0 < number <= _LARGEST:
        raise Mistake("not-a-step", call=call, got=describe(number), want=describe(want))
    return number


def _cases_while_quick() -> Iterator[tuple[float]]:
    """Yield the chosen weights; a search through 65,536 numbers, one by one, takes a second or two for each."""
    start = time.monotonic()
    for number, case in enumerate(_CASES):
        if number >= _FEWEST and time.monotonic() - start > _CASES_S:
            return
        yield case


def _batches() -> Iterator[Sequence[tuple[float]]]:
    """Shuffle the weights, and cut them into batches that grow: a slow answer is asked for few of them."""
    weights = [(sign * size,) for size in _ALL for sign in (1.0, -1.0)]
    random.Random(0).shuffle(weights)
    start, size = 0, 1
    while start < len(weights):
        yield weights[start : start + size]
        start, size = start + size, min(2 * size, _LARGEST_BATCH)


def _judge(trials: Sequence[Trial]) -> None:
    """Raise the `Mistake` of a whole approach: another format, one step for all, a share of the weight."""
    shown = expect.first_wrong(trials)
    if all(_is_too_fine(trial) for trial in trials):
        raise Mistake("added-in-a-wider-format", **shown)
    if _is_bf16(trials):
        raise Mistake("added-in-bf16", **shown)
    if len({trial.got for trial in trials}) == 1:
        raise Mistake("same-everywhere", **shown)
    shares = [trial.got / abs(trial.args[0]) for trial in trials]
    if max(shares) < min(shares) * 1.01:
        raise Mistake("share-of-the-weight", **shown, share=f"{shares[0]:.3g}")
    _recognise_no_number(trials)


def _is_too_fine(trial: Trial) -> bool:
    """Tell whether a step is what moves `w` in FP32 or FP64: all of these are far below what moves it in FP16."""
    return bool(trial.got == _SMALLEST or trial.got < _power(trial.args[0]) * 2.0**-21)


def _is_bf16(trials: Sequence[Trial]) -> bool:
    """Tell whether weights that BF16 holds, too, get half of BF16's gap or all of it; it is 8 times as wide."""
    wide = [trial for trial in trials if trial.args[0] / _power(trial.args[0]) * 2**7 % 1 == 0]
    return bool(wide) and all(4 <= trial.got / _gap(trial.args[0]) <= 8 for trial in wide)


def _recognise_no_number(trials: Sequence[Trial]) -> None:
    """Recognise a step that is near to the right one, but between two FP16 numbers."""
    first = next(trial for trial in trials if not alike(trial.got, trial.want))
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float16(first.got))
    if rounded != first.got:
        shown = expect.first_wrong([first])
        raise Mistake("no-fp16-number", **shown, rounded=describe(rounded))


def _recognise_alone(trials: Sequence[Trial]) -> None:
    (trial,) = trials
    raise Mistake("at-this-weight", **expect.first_wrong(trials), why=_about(trial.args[0]))


def _about(w: float) -> str:
    last_bit = "0" if _is_even(w) else "1"
    return (
        f"The next larger FP16 number is {describe(w + _gap(w))}, the next smaller one {describe(w - _gap(-w))}, "
        f"and the last bit of {describe(w)} is {last_bit}."
    )
