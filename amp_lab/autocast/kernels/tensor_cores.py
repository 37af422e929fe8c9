"""Kernels that compute FP16 and BF16 products on CPU tensors as Tensor Cores do, in the place of PyTorch's own.

Each converts its operands to FP32, has PyTorch's FP32 kernel multiply and add, and rounds the sums to 16 bits once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from amp_lab.autocast.kernels.replacing import Kernel, ReplacedKernels, original_kernel
from amp_lab.autocast.kernels.switch import Switch

# The operators that multiply and add up. What is not here comes down to these (linear, matmul, einsum, conv2d,
# LSTM cells, most of attention), is an operation per element (outer, addr), or has FP32 sums of its own
# (scaled_dot_product_attention's fused kernel). The exceptions are in tensor_cores' docstring; oneDNN's LSTM hands
# what it keeps for its backward pass over in a block of bytes, so that only a second LSTM could take its place.
NEW_RESULT = (
    "mm addmm bmm baddbmm addbmm addmv dot vdot _addmm_activation convolution convolution_backward".split()
)
# The same, into a tensor that is already there.
INTO_SELF = "addmm_ baddbmm_ addbmm_ addmv_".split()
INTO_OUT = "mm.out addmm.out bmm.out baddbmm.out addbmm.out addmv.out _addmm_activation.out".split()


def replace(switch: Switch) -> ReplacedKernels:
    """Put them in force, for products in the dtypes that `switch` has in force at each call."""
    replacements: dict[str, Callable[[Kernel], Kernel]] = {
        name: partial(_new_result, switch) for name in NEW_RESULT
    }
    for name in INTO_SELF:
        compute = original_kernel(name.removesuffix("_"), "CPU")
        replacements[name] = partial(_into_self, switch, compute)
    for name in INTO_OUT:
        compute = original_kernel(name.removesuffix(".out"), "CPU")
        replacements[name] = partial(_into_out, switch, compute)
    return ReplacedKernels("CPU", replacements)


def _new_result(switch: Switch, original: Kernel) -> Kernel:
    """A kernel that returns new tensors, as `mm` does."""

    def kernel(keys: object, *operands: Any, **scalars: Any) -> Any:
        dtype = _common_dtype(operands)
        if dtype is None or dtype not in switch.in_force:
            return original(keys, *operands, **scalars)
        return _rounded(original(keys, *map(_in_fp32, operands), **scalars), dtype)

    return kernel


def _into_self(switch: Switch, compute: Kernel, original: Kernel) -> Kernel:
    """A kernel that writes its result into its first operand, as `addmm_` does; `compute` is addmm."""

    def kernel(keys: object, *operands: Any, **scalars: Any) -> Any:
        target = operands[0]
        if _common_dtype(operands) in switch.in_force:
            sums = compute(keys, *map(_in_fp32, operands), **scalars)
            if sums.shape == target.shape:
                return target.copy_(sums)
        return original(keys, *operands, **scalars)  # where the shapes do not fit, for its error

    return kernel


def _into_out(switch: Switch, compute: Kernel, original: Kernel) -> Kernel:
    """A kernel that writes its result into the tensor `out`, as `mm.out` does; `compute` is mm."""

    def kernel(keys: object, *operands: Any, out: torch.Tensor, **scalars: Any) -> Any:
        if _common_dtype([*operands, out]) not in switch.in_force:
            return original(keys, *operands, out=out, **scalars)
        sums = compute(keys, *map(_in_fp32, operands), **scalars)
        # Resizes `out` if it must, and then warns as any operator does; copy_ would not.
        return torch.ops.aten._to_copy.out(_rounded(sums, out.dtype), out=out)

    return kernel


def _common_dtype(operands: Sequence[Any]) -> torch.dtype | None:
    """The dtype of the tensors among an operator's arguments, None where it differs."""
    dtypes = {operand.dtype for operand in operands if isinstance(operand, torch.Tensor)}
    return dtypes.pop() if len(dtypes) == 1 else None


def _in_fp32(operand: Any) -> Any:
    return operand.float() if isinstance(operand, torch.Tensor) else operand


def _rounded(sums: Any, dtype: torch.dtype) -> Any:
    """The one rounding: FP32 sums to 16 bits; several results (of a backward pass) one by one."""
    if isinstance(sums, tuple | list):
        return tuple(_rounded(each, dtype) for each in sums)
    return None if sums is None else sums.to(dtype)
