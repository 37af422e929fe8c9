"""What an x-ray sees: one record for each operator that ran, with the tensors that went in and came out."""

from dataclasses import dataclass
from typing import Literal

import torch

from amp_lab.autocast.fates import Fate

Phase = Literal["forward", "recomputed", "backward"]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor as it was seen.

    `name` is the parameter's or buffer's name in the model, where it is one. `made_by` is the number of the
    operator that made it, or wrote into it last; None for an input, a parameter and a constant.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str | None = None
    made_by: int | None = None


@dataclass(frozen=True, slots=True)
class Cast:
    """A floating-point argument that autocast changed to another dtype, for one operator.

    `value` is the argument before the cast. `copied` is the size of the new tensor in bytes: 0 where autocast found
    the copy in its cache of weights.
    """

    value: Value
    dtype: torch.dtype
    copied: int


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code: the innermost one that is neither Python's nor PyTorch's nor amp_lab's."""

    file: str
    line: int
    function: str
    text: str


_ITEM = ("aten._local_scalar_dense.default",)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator that ran.

    `kernels` are the ATen operators that did the work ("aten.addmm.default"), without the casts before them; `name`
    is what a user calls it ("linear"; "to" for a change of dtype that the user wrote). `module` is the path of the
    innermost module ("" for the model itself, "layers.0.linear1" inside it), `call` counts the calls of that module
    from 1. `region` is autocast's dtype there, None where autocast is off. `inputs` are the arguments before casts.
    `fate` is None where autocast did not see the operator: outside regions, and in a backward pass.
    `dtype` is the one it computed in: the widest floating-point dtype among its arguments after the casts (of its
    results, where it has none; numbers beside a tensor, that is tensors of no dimension, do not widen it, nor do the
    statistics of a layer that normalises); None where nothing is floating-point. `forward` is, in a backward pass, the
    number of the operator whose gradient this computes, whose name, module, source line and, where it is met there,
    dtype it also has. All kernels that compute it are one row. `error` is what it raised, if it did. `within` is the
    name of the custom `torch.autograd.Function` it ran in. `view` is True where no number was computed or copied.
    `scalars` are the plain numbers that it was called with, by the names of its arguments: (("other", 1e-05),).
    """

    number: int
    phase: Phase
    name: str
    kernels: tuple[str, ...]
    module: str
    module_type: str
    call: int
    source: Source | None
    region: torch.dtype | None
    inputs: tuple[Value, ...]
    casts: tuple[Cast, ...]
    dtype: torch.dtype | None
    outputs: tuple[Value, ...]
    fate: Fate | None
    reason: str
    forward: int | None = None
    error: str | None = None
    within: str | None = None
    view: bool = False
    scalars: tuple[tuple[str, float], ...] = ()

    @property
    def bookkeeping(self) -> bool:
        """Whether no floating-point number is computed or copied: it counts, makes indices, or reads one number.

        Such are BatchNorm's count of batches, `arange` for positions, and `.item()`.
        """
        return self.error is None and (self.dtype is None or self.kernels == _ITEM)
