"""What can be x-rayed, and the modules in it; what cannot, and why."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def check(model: Any) -> None:
    """Make sure that this can be x-rayed.

    Raises:
        TypeError: for what is not callable, compiled, scripted or wrapped for several devices.
        ValueError: for a model whose parameters have no shape yet.
    """
    if isinstance(model, type):
        raise TypeError(
            f"this is the class {model.__name__} itself: x-ray a model made of it, {model.__name__}(...)"
        )
    if not callable(model):
        raise TypeError(f"xray takes a model (an nn.Module) or a function; this is a {type(model).__name__}")
    _refuse_compiled(model, "the model")
    for root, module in modules_in(model).items():
        for name, part in module.named_modules(prefix=root):
            _refuse_compiled(part, f"its part {name!r}" if name else "the model")
            _refuse_wrapped(part, name)
        _refuse_lazy(module)


def _refuse_compiled(part: Any, what: str) -> None:
    if hasattr(part, "_orig_mod") or hasattr(part, "_torchdynamo_orig_callable"):
        raise TypeError(f"{what} is compiled: x-ray the eager one, which was given to torch.compile")
    if getattr(part, "_compiled_call_impl", None) is not None:
        raise TypeError(f"{what} is compiled, by its compile(): x-ray a model on which that was not called")
    if isinstance(part, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise TypeError(f"{what} is TorchScript: x-ray the eager one that it was made from")


def _refuse_wrapped(module: nn.Module, name: str) -> None:
    kind = type(module).__name__
    if kind in _WRAPPERS and type(module).__module__.startswith("torch."):
        inner = f"{name or 'model'}.module"
        raise TypeError(
            f"{name or 'the model'} is a {kind}, for several devices: x-ray what it holds, {inner}; "
            "autocast does the same to it"
        )


def _refuse_lazy(module: nn.Module) -> None:
    for name, parameter in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(parameter, UninitializedParameter | UninitializedBuffer):
            raise ValueError(
                f"{name} has no shape before the model has seen a batch (a lazy module): run the model once, "
                "under torch.no_grad(), then x-ray it"
            )
        if hasattr(parameter, "full_tensor"):
            raise TypeError(f"{name} is a {type(parameter).__name__}, of which every process has a part")


def name_of(model: Any) -> str:
    """Return what to call a model: the name of its class, or that of the function."""
    if isinstance(model, nn.Module):
        return type(model).__name__
    if isinstance(model, functools.partial):
        return name_of(model.func)
    return getattr(model, "__qualname__", None) or type(model).__name__


def module_types(model: Any, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the class of every module by its path, the model itself first."""
    found = {"": name_of(model)}
    for root, module in modules.items():
        found.update((path, type(part).__name__) for path, part in module.named_modules(prefix=root))
    return found


def modules_in(model: Any) -> dict[str, nn.Module]:
    """Return the modules that a model is made of, each once: itself, or those that a function has at hand.

    They go by "" (the model itself), or by the name of the variable, attribute or argument that holds them.
    """
    found: dict[str, nn.Module] = {}
    met: set[int] = set()
    for name, value in _within(model):
        for key, each in _spread(name, value):
            if isinstance(each, nn.Module) and id(each) not in met:
                met.update(id(part) for part in each.modules())
                found[key] = each
    return found


def _within(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a callable may use, with names."""
    if isinstance(model, nn.Module):
        yield "", model
    elif isinstance(model, functools.partial):
        yield from _within(model.func)
        yield from ((f"[{i}]", each) for i, each in enumerate(model.args))
        yield from model.keywords.items()
    elif isinstance(model, types.MethodType):
        if isinstance(model.__self__, nn.Module):
            yield "", model.__self__
        else:
            yield from getattr(model.__self__, "__dict__", {}).items()
            yield from _within(model.__func__)
    elif isinstance(model, types.FunctionType):
        yield from _of_function(model)
    else:
        yield from getattr(model, "__dict__", {}).items()


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        yield from _within(wrapped)


def _spread(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, or what is in it if it is a list, tuple or dict."""
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{i}]", each) for i, each in enumerate(value))
    elif isinstance(value, types.MethodType) and isinstance(value.__self__, nn.Module):
        yield name, value.__self__
    else:
        yield name, value


def device_of(tensors: Iterator[torch.Tensor], device_type: str) -> str:
    """Return the device type on which a model with these tensors runs: "cpu" (also for "meta"), or "cuda".

    Raises:
        ValueError: if `device_type`'s autocast cannot be seen there.
    """
    devices = {tensor.device.type for tensor in tensors} - {"meta"}
    strange = devices - {"cpu", "cuda"}
    if strange:
        raise ValueError(
            f"the model or its inputs are on {strange.pop()!r}: move a copy to the CPU and x-ray that"
        )
    if "cuda" not in devices:
        return "cpu"
    if device_type == "cpu":
        raise ValueError(
            "the model or its inputs are on a GPU, where CPU autocast does nothing: move them first"
        )
    return "cuda"
