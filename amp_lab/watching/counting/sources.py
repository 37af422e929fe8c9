"""What people have gradients in (a model, an optimizer, a dict, a list), taken apart into names and gradients."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

Gradient: TypeAlias = torch.Tensor | None
Source: TypeAlias = (
    nn.Module
    | torch.optim.Optimizer
    | torch.Tensor
    | Mapping[str, Gradient]
    | Iterable[Gradient | tuple[str, Gradient]]
)

_WANTED = (
    "gradient_report takes a model, an optimizer, a mapping from names to gradients, "
    "or a list of gradients, parameters or (name, gradient) tuples"
)


def named_gradients(source: Source) -> Iterator[tuple[str, Gradient]]:
    """Yield name and gradient, one by one; None for a parameter that has none.

    Of a parameter the gradient is its `.grad`. Any other tensor is taken for a gradient itself.

    Raises:
        TypeError: for what holds no gradients, or something else beside them.
        ValueError: for a name that comes twice.
    """
    seen = set()
    for name, value in _pairs(source):
        if name in seen:
            raise ValueError(f"two gradients are called {name!r}: give each a name of its own")
        seen.add(name)
        yield name, _checked(name, _gradient(value))


def _pairs(source: Any) -> Iterator[tuple[str, Any]]:
    match source:
        case nn.Module():
            yield from source.named_parameters()
        case torch.optim.Optimizer():
            yield from _of_optimizer(source)
        case torch.Tensor():
            if source.dim() == 0 and source.grad_fn is not None:
                raise TypeError(
                    "this is the result of a computation, as a loss is; if it is a gradient, detach() it"
                )
            yield "gradient", source
        case Mapping():
            if hasattr(source, "_metadata"):
                raise TypeError(
                    "this is a state dict, which holds weights and no gradients: give the model itself"
                )
            yield from ((str(name), value) for name, value in source.items())
        case Iterable() if not isinstance(source, str | bytes):
            for number, value in enumerate(source):
                named = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
                yield value if named else (f"[{number}]", value)
        case _:
            raise TypeError(f"{_WANTED}; this is a {type(source).__name__}: {reprlib.repr(source)}")


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield names and parameters. Parameters of two models may have one name, but then not in one group."""
    groups = optimizer.param_groups
    names = [name for group in groups for name in group.get("param_names", ())]
    ambiguous = len(names) > len(set(names))
    for number, group in enumerate(groups):
        known = group.get("param_names")
        for i, parameter in enumerate(group["params"]):
            name = known[i] if known else f"group {number}[{i}]"
            yield f"group {number}: {name}" if known and ambiguous else name, parameter


def _gradient(value: Any) -> Any:
    """Take a parameter's gradient. A tensor that requires one, but is the result of something, is no parameter."""
    is_parameter = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    return value.grad if is_parameter or isinstance(value, nn.Parameter) else value


def _checked(name: str, gradient: Any) -> Gradient:
    if gradient is None:
        return None
    if not isinstance(gradient, torch.Tensor):
        kind, shown = type(gradient).__name__, reprlib.repr(gradient)
        raise TypeError(f"{_WANTED}; {name!r} is a {kind}: {shown}")
    if not gradient.is_floating_point():
        hint = ": give its .real and .imag" if gradient.is_complex() else ""
        raise TypeError(f"{name!r} is a tensor of {gradient.dtype}, and gradients are floating-point{hint}")
    if (why := _unreadable(gradient)) is not None:
        raise TypeError(f"{name!r} {why}")
    return gradient


def _unreadable(gradient: torch.Tensor) -> str | None:
    """Say why the numbers of a tensor cannot be read, and what to give; None if they can, as far as one sees."""
    if hasattr(gradient, "full_tensor"):
        return (
            f"is a {type(gradient).__name__}, of which every process has a part: give .full_tensor(), in all of them, "
            "or .to_local() for this part"
        )
    if gradient.is_meta:
        return "is on PyTorch's meta device, where tensors have no numbers"
    if str(gradient.dtype).endswith("_x2"):
        return f"is a tensor of {gradient.dtype}, with two numbers in one: give them unpacked, as FP32"
    if gradient.is_nested:
        return "is a nested tensor: give its parts, .unbind()"
    if type(gradient).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not has_numbers(gradient):
        return no_numbers(gradient)
    if gradient.layout not in (torch.strided, torch.sparse_coo):
        return f"has the layout {gradient.layout}; give dense gradients, or sparse ones in COO layout"
    return None


def no_numbers(gradient: torch.Tensor) -> str:
    """Say what is to be said of a tensor for which `has_numbers` is false."""
    kind = type(gradient).__name__
    return f"is a {kind} without numbers of its own (as inside torch.vmap or FakeTensorMode): give a plain tensor"


def has_numbers(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has memory. One inside `torch.vmap`, or a FakeTensor, only stands for others."""
    try:
        stored = tensor if tensor.layout is torch.strided else tensor.detach()._values()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a FakeTensor answers 0, and a warning
            return stored.numel() == 0 or stored.data_ptr() != 0
    except RuntimeError:
        return False
