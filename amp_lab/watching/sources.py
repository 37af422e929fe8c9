"""What people have gradients in (a model, an optimizer, a dict, a list), taken apart into names and gradients."""

from __future__ import annotations

import reprlib
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
    "or a list of gradients or parameters"
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
            for number, group in enumerate(source.param_groups):
                names = group.get("param_names") or [
                    f"group {number}[{i}]" for i in range(len(group["params"]))
                ]
                yield from zip(names, group["params"], strict=True)
        case torch.Tensor():
            yield "gradient", source
        case Mapping():
            yield from ((str(name), value) for name, value in source.items())
        case Iterable() if not isinstance(source, str | bytes):
            for number, value in enumerate(source):
                named = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
                yield value if named else (f"[{number}]", value)
        case _:
            raise TypeError(f"{_WANTED}; this is a {type(source).__name__}: {reprlib.repr(source)}")


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
    if gradient.is_meta:
        raise TypeError(f"{name!r} is on PyTorch's meta device, where tensors have no numbers")
    if gradient.is_nested or gradient.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(
            f"{name!r} has the layout {gradient.layout}; give dense gradients, or sparse ones in COO layout"
        )
    return gradient
