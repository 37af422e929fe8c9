"""Numbers as logs write them, and as a report on a log does. (Those of `watching.words` import PyTorch.)"""

from __future__ import annotations

import math
import re
from typing import Final

_WORDS: Final = {
    "true": 1.0,
    "yes": 1.0,
    "false": 0.0,
    "no": 0.0,
    "nan": math.nan,
    "+nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
_THOUSANDS: Final = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
_TENSOR: Final = re.compile(r"tensor\(\s*\[?([^,\])]+)\]?.*\)", re.DOTALL)
_PLAIN: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def number(cell: object) -> float | None:
    """Read a cell: "1e-5", "65,536.0", "0,5", "NaN", "-Infinity", "True", "tensor(1.5)", 3; None: no number.

    A comma with three digits after it separates thousands; any other comma is a decimal one.
    """
    if isinstance(cell, bool | int | float):
        try:
            return float(cell)
        except OverflowError:  # a whole number of JSON that no float holds
            return math.inf if cell > 0 else -math.inf
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    if _PLAIN.fullmatch(text):
        return float(text)
    tensor = _TENSOR.fullmatch(text)
    if tensor:
        text = tensor[1].strip()
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    return float(text) if _PLAIN.fullmatch(text) else None


def counted(count: int, thing: str) -> str:
    """Write a count with its thing: "1 row", "1,200 rows"; "time" becomes "once" and "3 times"."""
    if thing == "time" and count == 1:
        return "once"
    return f"{count:,} {thing}{'s' * (count != 1)}"


def in_words(value: float | None) -> str:
    """Write a number with four digits, and a power of two as one: "0.03125", "2^16", "NaN", "infinite"."""
    if value is None:
        return "nothing"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value > 0 and not 0.01 < value < 1024 and math.frexp(value)[0] == 0.5:
        return f"2^{math.frexp(value)[1] - 1}"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}"
