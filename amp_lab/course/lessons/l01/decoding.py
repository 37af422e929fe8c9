"""Exercise 1.1: decode the 16 bits of FP16."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Region, Trial, alike

_PATTERNS = 2**16
_NUMBERS: list[float] = np.arange(_PATTERNS, dtype=np.uint16).view(np.float16).astype(float).tolist()
_AS_BF16: list[float] = torch.arange(_PATTERNS).to(torch.uint16).view(torch.bfloat16).tolist()
_FULL_SWEEP_S = 2.0  # a plain answer needs a tenth of a second for all patterns
_BATCH = 1024
_OUTSIDE = (-1, _PATTERNS, _PATTERNS + 0x3C00, -0x8000, -_PATTERNS)


def _decode(bits: int) -> float:
    return _NUMBERS[bits]


def _sign(bits: int) -> float:
    return -1.0 if bits >> 15 else 1.0


def _exponent(bits: int) -> int:
    return bits >> 10 & 31


def _fraction(bits: int) -> int:
    return bits & 1023


def _like_normal(bits: int, *, one: float = 1.0, fraction: float | None = None, exponent: int = 0) -> float:
    """Decode a pattern as somebody would who knows no special cases; the keywords are what they have wrong."""
    part = _fraction(bits) / 1024 if fraction is None else fraction
    return _sign(bits) * (one + part) * 2.0 ** (_exponent(bits) - 15 + exponent)


def _subnormal(bits: int, *, fraction: float) -> float:
    return _sign(bits) * fraction * 2.0**-14


def _backwards(bits: int) -> float:
    return int(f"{_fraction(bits):010b}"[::-1], 2) / 1024


def _without_leading_zeros(bits: int) -> float:
    """Decode a pattern cut from `f"{bits:b}"`, which drops the zeros that it begins with."""
    text = f"{bits:b}"
    exponent, fraction = int(text[1:6], 2), int(text[6:] or "0", 2)
    return (-1.0 if text[0] == "1" else 1.0) * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


def _size(bits: int) -> float:
    return abs(_decode(bits))


def _cases(*patterns: int) -> tuple[tuple[int], ...]:
    return tuple((pattern,) for pattern in patterns)


def _by_power_of_two(trials: Sequence[Trial]) -> int | None:
    """Return k if everything that came back is 2^k times what is right."""
    first = trials[0]
    if not 0.0 < first.got < 2.0**1000:
        return None
    k = math.log2(first.got / first.want)
    same = all(trial.got == trial.want * 2.0**k for trial in trials)
    return int(k) if k.is_integer() and same else None


# What Python makes of a formula that looks right; s, e and f are sign, exponent field and 0.fraction.
_SLIPS: tuple[tuple[str, str, Callable[[float, int, float], float]], ...] = (
    ("xor", "(1 + fraction) * (2 ^ (exponent - 15))", lambda s, e, f: s * (1 + f) * (2 ^ (e - 15))),
    ("xor", "(1024 + fraction) * 2 ^ (exponent - 25)", lambda s, e, f: int(1024 + 1024 * f) * 2 ^ (e - 25)),
    ("parentheses", "1 + fraction * 2.0 ** (exponent - 15)", lambda s, e, f: s + f * 2.0 ** (e - 15)),
    ("parentheses", "(1 + fraction) * 2.0 ** exponent - 15", lambda s, e, f: s * (1 + f) * 2.0**e - 15),
    ("parentheses", "1 + fraction * 2.0 ** exponent - 15", lambda s, e, f: s + f * 2.0**e - 15),
    ("parentheses", "bits >> 10 & 0b11111 - 15", lambda s, e, f: s * (1 + f) * 2.0 ** (e & 31 - 15)),
)


def _recognise_slip(trials: Sequence[Trial]) -> None:
    """Raise `Mistake` if everything that came back is what a formula gives that lacks parentheses, say."""
    for diagnosis, formula, slip in _SLIPS:
        if all(alike(trial.got, slip(*_fields(*trial.args))) for trial in trials):
            raise Mistake(diagnosis, **expect.first_wrong(trials), formula=formula)


def _fields(bits: int) -> tuple[float, int, float]:
    return _sign(bits), _exponent(bits), _fraction(bits) / 1024


def _recognise_formula(trials: Sequence[Trial]) -> None:
    _recognise_slip(trials)
    _recognise_bias(trials)


def _recognise_bias(trials: Sequence[Trial]) -> None:
    k = _by_power_of_two(trials)
    if k is not None:
        raise Mistake("bias", **expect.first_wrong(trials), bias=15 - k)


def _recognise_exponent(trials: Sequence[Trial]) -> None:
    k = _by_power_of_two(trials)
    if k is not None:
        raise Mistake("subnormal-exponent", **expect.first_wrong(trials), exponent=k - 14)


def _recognise_some_nans(trials: Sequence[Trial]) -> None:
    """Raise `Mistake` if NaN is seen in some of its patterns and not in others."""
    if any(alike(trial.got, trial.want) for trial in trials):
        raise Mistake("some-nans", **expect.first_wrong(trials))


# Plain patterns first: what is wrong with all numbers must not be taken for something about subnormals.
_POSITIVE = (0x3C00, 0x3E00, 0x4000, 0x3555, 0x4248, 0x2E66, 0x5BC8, 0x7BFF, 0x0400)
_REGIONS = (
    Region(
        _cases(*_POSITIVE),
        (
            ("converts-the-int", lambda bits: float(bits)),
            ("converts-the-int", lambda bits: float(np.float16(bits))),
            ("bf16-fields", _AS_BF16.__getitem__),
            ("byte-order", lambda bits: _decode(bits >> 8 | (bits & 255) << 8)),
            ("leading-zeros", _without_leading_zeros),
            ("sign-inverted", lambda bits: -_decode(bits)),
            ("no-leading-one", lambda bits: _like_normal(bits, one=0.0)),
            ("fraction-ignored", lambda bits: _like_normal(bits, fraction=0.0)),
            ("fraction-1023", lambda bits: _like_normal(bits, fraction=_fraction(bits) / 1023)),
            (
                "fraction-decimal",
                lambda bits: _like_normal(bits, one=0.0, fraction=float(f"1.{_fraction(bits)}")),
            ),
            ("fraction-backwards", lambda bits: _like_normal(bits, fraction=_backwards(bits))),
            ("fraction-whole", lambda bits: _like_normal(bits, fraction=_fraction(bits))),
            ("fraction-whole", lambda bits: _like_normal(bits, one=1024, fraction=_fraction(bits))),
        ),
        _recognise_formula,
    ),
    Region(
        _cases(*(0x8000 | pattern for pattern in _POSITIVE)),
        (
            ("sign-lost", _size),
            ("complement", lambda bits: -_decode(_PATTERNS - bits)),
            ("complement", lambda bits: -_decode(_PATTERNS - 1 - bits)),
            ("exponent-unmasked", lambda bits: _like_normal(bits, exponent=32)),
        ),
    ),
    Region(
        _cases(0x0001, 0x0002, 0x0155, 0x0200, 0x03FF, 0x8001, 0x82AA, 0x83FF),
        (
            ("no-subnormals", _like_normal),
            ("implicit-one", lambda bits: _like_normal(bits, exponent=1)),
            ("flushed-to-zero", lambda bits: 0.0),
            ("flushed-to-zero", lambda bits: _sign(bits) * 0.0),
            ("sign-lost", _size),
            ("fraction-whole", lambda bits: _subnormal(bits, fraction=_fraction(bits))),
            ("fraction-1023", lambda bits: _subnormal(bits, fraction=_fraction(bits) / 1023)),
        ),
        _recognise_exponent,
    ),
    Region(
        _cases(0x0000, 0x8000),
        (
            ("zero-sign", lambda bits: 0.0),
            ("zero-as-normal", _like_normal),
            ("zero-as-normal", lambda bits: _like_normal(bits, exponent=1)),
            ("zero-as-normal", lambda bits: abs(_like_normal(bits))),
        ),
    ),
    Region(
        _cases(0x7C00, 0xFC00),
        (
            ("infinity-as-number", _like_normal),
            ("infinity-is-nan", lambda bits: math.nan),
            ("sign-lost", _size),
        ),
    ),
    Region(
        _cases(0x7E00, 0x7C01, 0x7D55, 0x7FFF, 0xFE00, 0xFC01, 0xFFFF),
        (
            ("nan-as-number", _like_normal),
            ("nan-as-infinity", lambda bits: _sign(bits) * math.inf),
            ("nan-as-infinity", lambda bits: math.inf),
        ),
        _recognise_some_nans,
    ),
)


@checker("1.1")
def decode_half(ask: Ask) -> None:
    """Ask for patterns of every kind, then for all, in an order of merit, and for what is no pattern.

    A slow answer may be right: FP16 patterns by the thousand are asked for only while `_FULL_SWEEP_S` last, but 64 of
    each sign and exponent always.
    """
    ask.in_words = _in_words
    cases = [case for region in _REGIONS for case in region.cases]
    ask.compare(cases, _decode, (), read=expect.number, otherwise=expect.region_by_region(_REGIONS))
    chosen = [field << 10 | fraction for field in range(64) for fraction in _fractions(seed=field)]
    _sweep(zip(_cases(*chosen), ask.many(_cases(*chosen)), strict=True))
    for outside in _OUTSIDE:
        ask.refuses(ValueError, outside)
    _sweep(ask.many_while(_batches(set(range(_PATTERNS)) - set(chosen)), _FULL_SWEEP_S))


def _in_words(bits: int) -> str:
    """Show the three fields apart, as Python itself may write an int: `0b0_01111_0000000000`."""
    inside = f"0b{bits >> 15}_{_exponent(bits):05b}_{_fraction(bits):010b}"
    return f"`decode_half({inside if 0 <= bits < _PATTERNS else bits})`"


def _sweep(answers: Iterator[tuple[tuple[int, ...], object]]) -> None:
    for (bits,), answer in answers:
        want = _decode(bits)
        if type(answer) is float and answer == want != 0:
            continue  # the common case, first: there may be 65,536 of them
        got = expect.number(_in_words(bits), answer, want)
        if not alike(got, want):
            raise Mistake("wrong-value", call=_in_words(bits), got=describe(got), want=want)


def _batches(patterns: set[int]) -> Iterator[Sequence[tuple[int, ...]]]:
    """Shuffle the patterns, so that the first batches are a fair sample, and cut them into batches."""
    shuffled = random.Random(0).sample(sorted(patterns), len(patterns))
    for start in range(0, len(shuffled), _BATCH):
        yield _cases(*shuffled[start : start + _BATCH])


def _fractions(seed: int) -> list[int]:
    """Return 64 of the 1,024 fractions: those of few ones and of few zeros, and others by chance."""
    ends = {n for power in range(11) for n in (2**power - 1, 2**power % 1024, 1024 - 2**power)}
    others = sorted(set(range(1024)) - ends)
    return sorted(ends | set(random.Random(seed).sample(others, 64 - len(ends))))
