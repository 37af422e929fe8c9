"""Numbers of a gradient report in words, short and never rounded to something that they are not."""

import math
from typing import Final

_PERCENT: Final = "\N{NO-BREAK SPACE}%"  # a line must not end between a number and its unit


def share_in_words(part: int, whole: int) -> str:
    """Write a share in percent. "0 %" and "100 %" are exact: a share next to them is said to be under or over."""
    if part in (0, whole):
        return f"{100 if part else 0}{_PERCENT}"
    percent = 100 * part / whole
    if percent < 0.01:
        return f"<0.01{_PERCENT}"
    digits = 1 if 1 <= percent <= 99 else 2
    return f">99.99{_PERCENT}" if percent > 99.99 else f"{percent:.{digits}f}{_PERCENT}"


def size_in_words(value: float) -> str:
    """Write a size with three digits; one of less than a million with all those before the point."""
    if 1e3 <= value < 1e6 or value == int(value) < 1e3:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def scale_in_words(scale: float) -> str:
    """Write a power of two: "2^13 = 8,192"."""
    power = math.frexp(scale)[1] - 1
    if abs(power) < 2:
        return f"{scale:g}"
    return f"2^{power} = {int(scale):,}" if 0 < power <= 24 else f"2^{power}"
