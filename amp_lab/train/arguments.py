"""What the functions here check of their arguments."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard


def is_whole(value: Any) -> TypeGuard[int]:
    """Tell whole numbers, NumPy's too, from everything else; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def kind_of(value: Any) -> str:
    """Return what a value is, for an error: "an int", "a list", "None", "<class 'int'>"."""
    if value is None or isinstance(value, type):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def as_size(function: str, name: str, value: Any) -> int:
    """Return a number of things as an int.

    Raises:
        ValueError: if it is not a whole number of at least 1.
    """
    if not is_whole(value) or value < 1:
        raise ValueError(f"{function}({name}={value!r}): {name} is a whole number of at least 1")
    return int(value)


def as_seed(function: str, seed: Any) -> int:
    """Return a seed as PyTorch takes it.

    Raises:
        ValueError: if it is not a whole number of at most 63 bits.
    """
    if not is_whole(seed) or abs(seed) >= 2**63:
        raise ValueError(f"{function}(seed={seed!r}): a seed is a whole number below 2**63, such as 0")
    return int(seed)
