"""What a kernel should have given: the same kernel once more, in FP64, on the numbers that it was given."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from amp_lab.autocast.recording.operators import tensors_in
from amp_lab.watching.replaying.ranges import range_of
from amp_lab.watching.replaying.records import Range

# FP64 first; some kernels, such as those of attention on a GPU, have no FP64: FP32 reaches as far as BF16.
_WIDE = (torch.float64, torch.float32)
MOST = (
    4 * 2**30
)  # bytes of arguments: a large model leaves little memory, and a host's may end without an error


def true_range(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Range | None:
    """Return the range of what an ATen operator gives in FP64, its floating-point results taken together.

    Args:
        func: the operator, an overload of `torch.ops`.
        args, kwargs: its arguments, as they were before it ran. They are not changed.

    The shape is that of its first floating-point result. Random numbers are drawn anew, from the same state, and the
    state stays as it was. None if the operator takes neither FP64 nor FP32, or there is no memory for that:
    its arguments may take `MOST` bytes then.
    """
    numbers = sum(each.numel() for each in tensors_in((args, kwargs)) if each.is_floating_point())
    for wide in _WIDE:
        if numbers * wide.itemsize > MOST:
            continue
        try:
            with torch.no_grad(), torch.random.fork_rng(_gpus(args)):
                results = tensors_in(_run(func, args, kwargs, wide))
            ranges = [range_of(each) for each in results if each.is_floating_point() or each.is_complex()]
            if ranges:
                return _together(ranges)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
    return None


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wide: torch.dtype) -> Any:
    """Run it with copies of all tensors, so that in-place operators write into those."""
    copies: dict[int, torch.Tensor] = {}

    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in copies:
                floats = value.is_floating_point()
                copies[id(value)] = value.detach().to(wide, copy=True) if floats else value.detach().clone()
            return copies[id(value)]
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return wide
        return value

    arguments = list(tree_map(widened, args))
    for place, argument in enumerate(func._schema.arguments[: len(arguments)]):
        if argument.name == "half_to_float":  # of a softmax: FP64 must not have this flag
            arguments[place] = False
    return func(*arguments, **tree_map(widened, kwargs))


def _together(ranges: list[Range]) -> Range:
    first = ranges[0]
    with_numbers = [each for each in ranges if each.of > each.infinite + each.nan]
    return Range(
        shape=first.shape,
        dtype=first.dtype,
        smallest=min((each.smallest for each in with_numbers), default=0.0),
        largest=max((each.largest for each in with_numbers), default=0.0),
        positive=sum(each.positive for each in ranges),
        negative=sum(each.negative for each in ranges),
        nan=sum(each.nan for each in ranges),
        zeros=sum(each.zeros for each in ranges),
        of=sum(each.of for each in ranges),
    )


def _gpus(args: tuple[Any, ...]) -> list[int]:
    return sorted({each.device.index or 0 for each in tensors_in(args) if each.device.type == "cuda"})
