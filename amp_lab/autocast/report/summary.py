"""An x-ray in numbers: operators by dtype and casts, for the whole model and for each of its modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from amp_lab.autocast.records import Op, Phase


@dataclass(frozen=True)
class Counts:
    """What some operators did. Views, which compute nothing, are counted in `views` only.

    `dtypes` says how many computed in each dtype, None standing for those without floating-point numbers. `casts`
    are autocast's own, `copied` the bytes they wrote, and `cached` those that found their copy in the cache of
    weights. `own` are the casts that the model's code asked for, as `.float()` does, and `own_copied` their bytes.
    """

    ops: int
    views: int
    dtypes: Mapping[torch.dtype | None, int]
    casts: int
    cached: int
    copied: int
    own: int
    own_copied: int


@dataclass(frozen=True)
class ModuleSummary:
    """What a module did, with all the modules in it, in each phase. `module` is "" for the model itself."""

    module: str
    module_type: str
    forward: Counts
    recomputed: Counts
    backward: Counts


def counts(ops: Iterable[Op]) -> Counts:
    """Count what operators did."""
    ops = tuple(ops)
    working = [op for op in ops if not op.view]
    casts = [cast for op in ops for cast in op.casts]
    own = [op for op in working if is_cast(op)]
    return Counts(
        ops=len(working),
        views=len(ops) - len(working),
        dtypes=dict(Counter(op.dtype for op in working).most_common()),
        casts=len(casts),
        cached=sum(not each.copied for each in casts),
        copied=sum(each.copied for each in casts),
        own=len(own),
        own_copied=sum(written(op) for op in own),
    )


def modules(ops: Iterable[Op], types: Mapping[str, str]) -> tuple[ModuleSummary, ...]:
    """Summarise every module that did something, parents before their children."""
    types, within = dict(types), dict[str, list[Op]]()
    for op in ops:
        types.setdefault(op.module, op.module_type)
        for path in _up_to(op.module):
            within.setdefault(path, []).append(op)
    return tuple(
        ModuleSummary(path, types.get(path, ""), *(counts(of_phase(inside, phase)) for phase in PHASES))
        for path, inside in within.items()
    )


def depth(path: str) -> int:
    """Return how deep a module lies: 0 for the model itself, 2 for "layers.0"."""
    return path.count(".") + 1 if path else 0


def _up_to(path: str) -> Iterable[str]:
    """Yield a module's parents and itself, from the model down: "", "layers", "layers.0"."""
    yield ""
    for place, letter in enumerate(path):
        if letter == ".":
            yield path[:place]
    if path:
        yield path


PHASES: tuple[Phase, ...] = ("forward", "recomputed", "backward")


def of_phase(ops: Iterable[Op], phase: Phase) -> list[Op]:
    """Return the operators of one phase."""
    return [op for op in ops if op.phase == phase]


def is_cast(op: Op) -> bool:
    """Return whether an operator is a cast that autocast did not make: `.half()`, `.float()`, `.to(dtype)`.

    In a backward pass these are the casts of gradients, which autograd makes as the mirror of the forward ones.
    """
    if op.view or len(op.kernels) != 1 or not op.kernels[0].startswith("aten._to_copy"):
        return False
    return bool(op.inputs and op.outputs) and op.inputs[0].dtype != op.outputs[0].dtype


def written(op: Op) -> int:
    """Return how many bytes the results of an operator take."""
    return sum(size_of(each.shape, each.dtype) for each in op.outputs)


def size_of(shape: Iterable[int], dtype: torch.dtype) -> int:
    """Return how many bytes a tensor takes."""
    size = dtype.itemsize
    for each in shape:
        size *= each
    return size
