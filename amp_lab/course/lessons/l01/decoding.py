"""Exercise 1.1: decode the 16 bits of FP16."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import torch

from amp_lab.course import expect
from amp_lab.course.ask import Ask
from amp_lab.course.describe import describe
from amp_lab.course.exercise import checker
from amp_lab.course.expect import Mistake, Region, Trial, alike

_PATTERNS = 2**16
_NUMBERS: list[float] = np.arange(_PATTERNS, dtype=np.uint16).view(np.float16).astype(float).tolist()
_AS_BF16: list[float] = torch.arange(_PATTERNS).to(torch.uint16).view(torch.bfloat16).tolist()
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


def _recognise_bias(trials: Sequence[Trial]) -> None:
    k = _by_power_of_two(trials)
    if k is not None:
        raise Mistake("bias", **_shown(trials[0]), bias=15 - k)


def _recognise_exponent(trials: Sequence[Trial]) -> None:
    k = _by_power_of_two(trials)
    if k is not None:
        raise Mistake("subnormal-exponent", **_shown(trials[0]), exponent=k - 14)


def _recognise_some_nans(trials: Sequence[Trial]) -> None:
    """Raise `Mistake` if NaN is seen in some of its patterns and not in others."""
    wrong = [trial for trial in trials if not alike(trial.got, trial.want)]
    if len(wrong) < len(trials):
        raise Mistake("some-nans", **_shown(wrong[0]))


def _shown(trial: Trial) -> dict[str, str]:
    return {"call": trial.call, "got": describe(trial.got), "want": describe(trial.want)}


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
        _recognise_bias,
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
    """Ask for patterns of every kind, then for 64 of each sign and exponent, then for what is no pattern."""
    ask.in_words = _in_words
    cases = [case for region in _REGIONS for case in region.cases]
    ask.compare(cases, _decode, (), read=expect.number, otherwise=expect.region_by_region(_REGIONS))
    _sweep(ask)
    for outside in _OUTSIDE:
        ask.refuses(ValueError, outside)


def _in_words(bits: int) -> str:
    """Show the three fields apart, as Python itself may write an int: `0b0_01111_0000000000`."""
    inside = f"0b{bits >> 15}_{_exponent(bits):05b}_{_fraction(bits):010b}"
    return f"`decode_half({inside if 0 <= bits < _PATTERNS else bits})`"


def _sweep(ask: Ask) -> None:
    cases = [(field << 10 | fraction,) for field in range(64) for fraction in _fractions(seed=field)]
    for (bits,), answer in zip(cases, ask.many(cases), strict=True):
        call, want = _in_words(bits), _decode(bits)
        got = expect.number(call, answer, want)
        if not alike(got, want):
            raise Mistake("wrong-value", call=call, got=describe(got), want=want)


def _fractions(seed: int) -> list[int]:
    """Return 64 of the 1,024 fractions: those of few ones and of few zeros, and others by chance."""
    ends = {n for power in range(11) for n in (2**power - 1, 2**power % 1024, 1024 - 2**power)}
    others = sorted(set(range(1024)) - ends)
    return sorted(ends | set(random.Random(seed).sample(others, 64 - len(ends))))
