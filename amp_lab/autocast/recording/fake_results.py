"""What operators on FakeTensors would give on real ones: errors about dtypes, and the dtypes of statistics.

FakeTensors compute shapes and dtypes only, with code of their own, which differs from that of real operators in places.
"""

from __future__ import annotations

from typing import Any

import torch

# Operators that normalise, and give the mean and the deviation as well, for their backward pass.
_NORMALISING = {
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",  # these two give the gradients of the parameters, too
    "aten::native_group_norm",
    "aten::native_group_norm_backward",
}


def corrected(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Return an operator's result with the dtypes that real tensors would have on a CPU, and on a GPU.

    With an input in 16 bits and parameters in FP32, statistics and gradients of parameters are FP32, and the first
    result is like the input. FakeTensors have some of them the other way round.
    """
    if func._schema.name not in _NORMALISING:
        return result
    others = [each for each in args[1:] if isinstance(each, torch.Tensor)]
    if args[0].dtype.itemsize != 2 or not any(each.dtype is torch.float32 for each in others):
        return result
    first, *others = result
    return (_in(args[0].dtype, first), *(_in(torch.float32, each) for each in others))


def _in(dtype: torch.dtype, result: torch.Tensor | None) -> torch.Tensor | None:
    return result if result is None or result.dtype is dtype else torch.empty_like(result, dtype=dtype)
