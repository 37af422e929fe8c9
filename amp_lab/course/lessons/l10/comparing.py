"""Weights that were seen, next to those that are right."""

from __future__ import annotations

import torch

State = dict[str, torch.Tensor]
_HARDLY = 0.05  # of the way that right steps go


def difference(one: State, other: State, rtol: float) -> tuple[str, str, str] | None:
    """Return name and values of the first number that is another, or None; `rtol` is of the largest in its tensor."""
    for name in other:
        mine, right = one[name].double(), other[name].double()
        near = (mine - right).abs() <= rtol * right.abs().max()
        near |= (mine == right) | (mine.isnan() & right.isnan())
        if not near.all():
            index = tuple(int(each) for each in (~near).nonzero()[0])
            where = f"{name}[{', '.join(map(str, index))}]"
            return where, f"{float(mine[index]):.7g}", f"{float(right[index]):.7g}"
    return None


def hardly_moved(now: State, before: State, right: State) -> bool:
    """Return whether weights have moved, but only by a small part of the way that right steps go."""
    moved = max(float((now[name] - before[name]).abs().max()) for name in right)
    way = max(float((right[name] - before[name]).abs().max()) for name in right)
    return 0 < moved < _HARDLY * way
