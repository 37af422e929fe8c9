"""Powers of two, and numbers, as people read them."""

from __future__ import annotations

import math
import re

from matplotlib.axis import Axis

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def in_words(scale: float) -> str:
    """Write a scale: "2^13 = 8,192", a long one as a power only; one that is no power of two as a number."""
    short = briefly(scale)
    return f"{short} = {int(scale):,}" if "^" in short and 2 <= scale <= 2**24 else short


def briefly(scale: float) -> str:
    """Write a scale without its digits: "2^13"; one that is no power of two as a number."""
    if not 0 < scale < math.inf or math.frexp(scale)[0] != 0.5:
        return plain(scale)
    power = math.frexp(scale)[1] - 1
    return f"{scale:g}" if abs(power) < 2 else f"2^{power}"


def plain(value: float) -> str:
    """Write a number to five digits, or whole: 0.01, 3,942,101; a very large or small one with a power of ten."""
    if 1e5 <= value < 1e15:
        return f"{value:,.0f}"
    digits, _, power = f"{value:,.5g}".partition("e")
    if not power:
        return digits
    return f"{'' if digits == '1' else f'{digits}×'}10{str(int(power)).translate(_RAISED)}"


def in_figure(scale: float) -> str:
    """Write the same with its exponent above the line: with characters, as Matplotlib's formulas take a while each."""
    return re.sub(r"\^(-?\d+)", lambda found: found[1].translate(_RAISED), in_words(scale))


def raised(power: int) -> str:
    """Write 2 with an exponent."""
    return f"2{str(power).translate(_RAISED)}"


def label(axis: Axis, low: float, high: float, most: int) -> None:
    """Put at most so many ticks on an axis of powers, at multiples of 1, 2, 4, 8 …, written as 2 with an exponent."""
    step = next(step for step in _STEPS if high - low <= (most - 1) * step)
    powers = [step * each for each in range(math.ceil(low / step), math.floor(high / step) + 1)]
    axis.set_ticks(powers, [raised(power) for power in powers])
