"""Numbers of a gradient report in words, short and never rounded to something that they are not."""

import math


def share_in_words(part: int, whole: int) -> str:
    """Write a share in percent. "0 %" and "100 %" are exact: a share next to them is said to be under or over."""
    if part in (0, whole):
        return "100 %" if part else "0 %"
    percent = 100 * part / whole
    if percent < 0.01:
        return "<0.01 %"
    return ">99.99 %" if percent > 99.99 else f"{percent:.{1 if 1 <= percent <= 99 else 2}f} %"


def size_in_words(value: float) -> str:
    """Write a size with three digits; a whole number up to a million with all of its."""
    if value == int(value) and value < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}"


def scale_in_words(scale: float) -> str:
    """Write a power of two: "2^13 = 8,192"."""
    power = math.frexp(scale)[1] - 1
    if abs(power) < 2:
        return f"{scale:g}"
    return f"2^{power} = {int(scale):,}" if 0 < power <= 24 else f"2^{power}"
