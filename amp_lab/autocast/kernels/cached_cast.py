"""One cast of autocast on CPU tensors, through the cache of weights that PyTorch's own autocast keeps.

In a region, FP32 weights are cast once and kept until the outermost region ends. That cache lives in PyTorch's C++
code; its own kernels read and fill it. Kernels written in Python must share it: a weight that `linear` and `mv` both
use has *one* copy in 16 bits, in which both gradients meet before they go back to FP32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast.kernels.replacing import original_kernel

# Lowers both its arguments on CPUs, and is taken now, before anybody replaces it.
_PYTORCHS_MM = original_kernel("mm", "AutocastCPU")
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_INTEGERS = torch.empty(0, dtype=torch.int64)  # no argument that anything is done to


def eligible(tensor: torch.Tensor) -> bool:
    """Whether autocast on the CPU may cast this tensor: floating-point, not FP64, on the CPU."""
    return tensor.is_cpu and tensor.is_floating_point() and tensor.dtype is not torch.float64


def cached_cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an eligible tensor in `dtype`, any other as it is; weights from PyTorch's cache, or put there."""
    if not eligible(tensor) or tensor.dtype is dtype:
        return tensor
    if _may_be_cached(tensor) and dtype is torch.get_autocast_dtype("cpu"):
        return _cast_by_pytorch(tensor)
    return tensor.to(dtype)


def _may_be_cached(tensor: torch.Tensor) -> bool:
    """Whether it may be a weight. PyTorch looks closer; this is to spare it all the others."""
    return (
        tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and torch.is_autocast_cache_enabled()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # torch.func has it in hand
    )


def _cast_by_pytorch(tensor: torch.Tensor) -> torch.Tensor:
    """Let PyTorch's own kernel for mm cast it, and stop that call as soon as it hands the tensor on.

    There is no other door from Python into the cache. The call stops below autograd and above the product: nothing
    is computed or recorded but the cast.
    """
    try:
        with _StopAtMm():  # type: ignore[no-untyped-call]
            _PYTORCHS_MM(_KEYS, tensor, _INTEGERS)
    except _HandedOnError as stop:
        return stop.tensor
    raise RuntimeError(
        "PyTorch's kernel for mm no longer hands on what it casts: please report this to amp_lab"
    )


class _HandedOnError(Exception):
    """Carries what autocast handed on to mm."""

    def __init__(self, tensor: torch.Tensor):
        super().__init__("handed on")
        self.tensor = tensor


class _StopAtMm(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler for this mode: that takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.ops.aten.mm.default:
            raise _HandedOnError(arguments[0])
        return function(*arguments, **(named or {}))
