"""Run a batch once more, forward and backward, and look at the numbers that go into and come out of every operator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from amp_lab.autocast.policy import policy
from amp_lab.autocast.recording.accepted import device_of, module_types, name_of
from amp_lab.autocast.recording.alone import alone
from amp_lab.autocast.recording.events import Kernel, Runner, Seen
from amp_lab.autocast.recording.operators import is_view, overload, scalars, tensors_in, written
from amp_lab.autocast.recording.rows import Row
from amp_lab.autocast.recording.running import Task, run
from amp_lab.autocast.records import Op, Value
from amp_lab.watching.replaying.ranges import Ranges, address_of, of_number, range_of
from amp_lab.watching.replaying.records import Range, Trace, Traced
from amp_lab.watching.replaying.truth import true_range

# Operators that hand out memory as it was found: what is in it means nothing.
_UNINITIALISED: Final = {
    "empty.memory_format",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
}


def trace(
    call: Callable[..., torch.Tensor],
    modules: Mapping[str, nn.Module],
    *,
    scale: float,
    device_type: str,
    dtype: torch.dtype = torch.float16,
    region: bool = True,
    inputs: tuple[Any, ...] = (),
    keywords: Mapping[str, Any] | None = None,
    runs_on: str | None = None,
    truths: int = 4,
) -> Trace:
    """Run a batch forward and backward, and return every operator with the ranges of its inputs and outputs.

    Args:
        call: runs the model and the loss function, and returns the loss before scaling: one real number.
        modules: those that `call` uses, the outermost, by name: `{"": model}`.
        scale: the loss scale: the gradient that the backward pass starts with, in the dtype of the loss.
        device_type: whose autocast: "cuda" or "cpu". On CPU tensors "cuda" is emulated.
        dtype: autocast's, in the region that is put around `call`.
        region: whether to put one: False if `call` has its own, or is to run without.
        inputs, keywords: what `call` is called with.
        runs_on: the device type of the tensors, "cpu" or "cuda"; None: looked up among modules and inputs.
        truths: for how many operators that make infinity or NaN of finite numbers their result is computed in FP64.

    What `call` raises is not raised: the trace ends there, and has `error`. Nothing is changed: parameters, gradients,
    buffers, inputs, random states, settings. An operator's `truth` is that of the first of its kernels which made
    infinity or NaN, be it autocast's cast before it, and may be there although its results are finite: what came up
    inside it was lost again. A scalar argument that is infinite or NaN counts as an input, with the argument's name.
    Memory that was not written to yet has a range of 0 numbers.

    Raises:
        ValueError: for a device type, or tensors on a device, that cannot be traced, or a scale that is not positive.
        RuntimeError: if the model itself asks for a trace or an x-ray.
    """
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale={scale}: a loss scale is a finite number above 0, such as 65536.0")
    if device_type not in ("cuda", "cpu"):
        raise ValueError(f'device_type={device_type!r}: it is whose autocast to follow, "cuda" or "cpu"')
    root = modules.get("", call)
    with alone(name_of(root)):
        policy("cpu")  # asked before any kernel is replaced
        task = Task(
            model=call,
            inputs=inputs,
            keywords=keywords or {},
            modules=modules,
            types=module_types(root, modules),
            loss=None,
            backward=True,
            runs_on=runs_on or device_of(_tensors(modules, (inputs, keywords)), device_type),
            device_type=device_type,
            dtype=dtype,
            policy=policy(device_type),
            region=region,
            gradient=scale,
            scalar=True,
        )
        looking = _Looking(truths)
        outcome = run(task, "value", looking)
    return Trace(
        scale=scale,
        ops=tuple(_traced(row, looking.truths) for row in outcome.rows),
        loss=None if outcome.loss is None else range_of(outcome.loss),
        error=None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
        notes=tuple(outcome.notes),
    )


def _tensors(modules: Mapping[str, nn.Module], tree: Any) -> Iterator[torch.Tensor]:
    for module in modules.values():
        yield from itertools.chain(module.parameters(), module.buffers())
    yield from (each for each in tree_leaves(tree) if isinstance(each, torch.Tensor))


class _Looking:
    """A listener that takes ranges, and runs again in FP64 what made infinity or NaN.

    `truths` are the ranges of what these kernels should have given, by their numbers.
    """

    def __init__(self, count: int):
        self.truths: dict[int, Range | None] = {}
        self._count = count
        self._ranges = Ranges()

    def look(self, tensor: torch.Tensor) -> Range | None:
        return self._ranges.of(tensor)

    def run(self, kernel: Kernel, work: Runner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = kernel.operator
        targets = written(func, args, kwargs)
        before = (args, kwargs)
        asks = len(self.truths) < self._count and not is_view(func) and self._takes_finite(func, args, kwargs)
        if asks and targets:
            before = _saved(before, targets)
        result = work(func, args, kwargs)
        results = tensors_in(result)
        self._note(func, targets, results, tensors_in((args, kwargs)))
        if asks and not self._all_finite((*results, *targets)):
            self.truths[kernel.number] = true_range(func, *before)
        return result

    def _takes_finite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        numbers = scalars(func, args, kwargs)
        return all(math.isfinite(value) for _, value in numbers) and self._all_finite(
            tensors_in((args, kwargs))
        )

    def _all_finite(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        return all(found is None or found.finite for found in map(self._ranges.of, tensors))

    def _note(
        self,
        func: Any,
        targets: tuple[torch.Tensor, ...],
        results: tuple[torch.Tensor, ...],
        given: tuple[torch.Tensor, ...],
    ) -> None:
        """Note which memory has new numbers."""
        old = {address_of(tensor) for tensor in given}
        new = [tensor for tensor in results if address_of(tensor) not in old]
        if overload(func) in _UNINITIALISED:
            self._ranges.note_fresh(new)
        else:
            self._ranges.note_written([*targets, *new])


def _saved(tree: Any, targets: tuple[torch.Tensor, ...]) -> Any:
    """Return arguments with copies in the place of the tensors that are about to be written over."""
    addresses = {address_of(tensor) for tensor in targets}

    def copied(value: Any) -> Any:
        shares = isinstance(value, torch.Tensor) and address_of(value) in addresses
        return value.detach().clone() if shares else value

    return tree_map(copied, tree)


def _traced(row: Row, truths: Mapping[int, Range | None]) -> Traced:
    op = row.op
    return Traced(
        op=op,
        inputs=(*_ranges(op.inputs, row.inputs), *_special_scalars(op)),
        outputs=_ranges(op.outputs, row.outputs),
        truth=next((found for kernel in row.kernels if (found := truths.get(kernel)) is not None), None),
    )


def _ranges(values: tuple[Value, ...], seen: tuple[Seen, ...]) -> tuple[Range, ...]:
    pairs = zip(values, seen, strict=True)
    return tuple(
        replace(each.look, name=value.name, made_by=value.made_by)
        for value, each in pairs
        if each.look is not None
    )


def _special_scalars(op: Op) -> Iterator[Range]:
    """Yield a range for each infinity or NaN that the user's code hands over, as masks do."""
    for name, value in op.scalars:
        if not math.isfinite(value):
            yield of_number(value, op.dtype or torch.get_default_dtype(), name)
