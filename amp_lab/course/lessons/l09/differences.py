"""What is not as it was: the first difference between two dicts of numbers by name, in words."""

from __future__ import annotations

from typing import Any

import torch


def first_difference(got: dict[str, Any], want: dict[str, Any]) -> dict[str, str] | None:
    """Return the first thing that is not the same, a tensor in every bit: `place`, `got` and `want`; or None."""
    for name in want | got:
        one, other = got.get(name, "not there"), want.get(name, "not there")
        if not _same(one, other):
            place = name if "`" in name else f"`{name}`"
            return {"place": place, "got": _short(one), "want": _short(other)}
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(((one == other) | (one.isnan() & other.isnan())).all())
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return (
            f"{[float(f'{each:.6g}') for each in value.flatten()[:3].tolist()]}{' …' * (value.numel() > 3)}"
        )
    return f"{value:g}" if isinstance(value, float) else str(value)
