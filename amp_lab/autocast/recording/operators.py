"""Questions to PyTorch about its operators: what they are called, take, write into and are made of."""

from __future__ import annotations

import functools
from typing import Any

import torch

# Views whose schema does not say so, since autograd must not know.
_SECRET_VIEWS = {"aten::_unsafe_view", "aten::lift_fresh"}
# Questions, which compute nothing.
_QUESTIONS = {
    "prim::device",
    "aten::is_same_size",
    "aten::_has_same_storage_numel",
    "aten::sym_size",
    "aten::sym_stride",
    "aten::sym_numel",
}
# Arguments that operators write into whose schema does not say so.
_RUNNING_STATISTICS = ("running_mean", "running_var")


def tensors_in(tree: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors among an operator's arguments or results, in order."""
    if isinstance(tree, torch.Tensor):
        return (tree,)
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return ()
    found: list[torch.Tensor] = []
    for each in tree:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple | dict):
            found.extend(tensors_in(each))
    return tuple(found)


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that torch.func's transforms (grad, jvp, vmap) have wrapped: the one that kernels are given.

    Asked of private functions: there are no public ones.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def takes_functions(func: Any) -> bool:
    """Say whether an operator is given functions to call, as flex_attention and cond are; it has no schema."""
    return not hasattr(func, "_schema")


@functools.cache
def overload(func: Any) -> str:
    """Return the name of an operator as torch.library writes it: "softmax.int", "linear", "mylib::op"."""
    if takes_functions(func):
        return str(func)
    name = func._schema.name.removeprefix("aten::")
    return f"{name}.{func._schema.overload_name}" if func._schema.overload_name else name


@functools.cache
def is_question(func: Any) -> bool:
    return not takes_functions(func) and func._schema.name in _QUESTIONS


@functools.cache
def is_view(func: Any) -> bool:
    return not takes_functions(func) and (func.is_view or func._schema.name in _SECRET_VIEWS)


@functools.cache
def is_composite(func: Any) -> bool:
    return (
        not takes_functions(func)
        and func._schema.name.startswith("aten::")
        and overload(func) in composites()
    )


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Return the tensors that an operator writes into."""
    return tensors_in(
        [args[i] if i < len(args) else kwargs.get(name) for i, name in _written_arguments(func)]
    )


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    if takes_functions(func):
        return ()
    for place, argument in enumerate(func._schema.arguments):
        if (argument.alias_info and argument.alias_info.is_write) or argument.name in _RUNNING_STATISTICS:
            found.append((place, argument.name))
    return tuple(found)


@functools.cache
def named(overload: str) -> Any:
    """Return the operator with a name as torch.library writes it; None where ATen has none of that name."""
    packet, _, name = overload.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), name or "default", None)


def scalars(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the plain numbers that an operator is called with, by the names of its arguments."""
    found = []
    for place, value in enumerate(args):
        if type(value) in (int, float) and place < len(names := _argument_names(func)):
            found.append((names[place], value))
    for name, value in kwargs.items():
        if type(value) in (int, float):
            found.append((name, value))
    return tuple(found)


@functools.cache
def _argument_names(func: Any) -> tuple[str, ...]:
    return (
        ()
        if func is None or takes_functions(func)
        else tuple(argument.name for argument in func._schema.arguments)
    )


@functools.cache
def composites() -> frozenset[str]:
    """Return the ATen operators that are made of others and return tensors: "linear", "reshape", "to.dtype".

    Asked of the dispatcher, through private functions: no public one lists its operators.
    """
    names = torch._C._dispatch_get_all_op_names()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    made = [
        name for name in names if name.startswith("aten::") and has_kernel(name, "CompositeImplicitAutograd")
    ]
    # Some have kernels of their own as well, such as native_layer_norm.
    made = [name for name in made if not (has_kernel(name, "CPU") or has_kernel(name, "AutogradCPU"))]
    return frozenset(name.removeprefix("aten::") for name in made if _takes_and_gives_tensors(name))


def _takes_and_gives_tensors(name: str) -> bool:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    func = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if func is None or "Dimname" in str(func._schema) or overload.endswith("out"):
        return False
    schema = func._schema
    takes = any("Tensor" in str(each.type) for each in schema.arguments)
    return takes and any("Tensor" in str(each.type) for each in schema.returns)
