"""What an x-ray must leave as it was: the model, its inputs, and the state of PyTorch in this thread and process."""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_iter

_T = TypeVar("_T")
_KEYS = ("AutocastCPU", "AutocastCUDA")
_GLOBAL_HOOKS = [name for name in vars(nn.modules.module) if name.startswith("_global_") and "hook" in name]


class Traces:
    """A picture of everything that could keep a trace; `missing` compares with another one, taken later."""

    def __init__(self, *watched: Any) -> None:
        self.watched = watched
        self.before = picture(*watched)

    def left(self) -> list[str]:
        """Return the names of what is not as it was."""
        now = picture(*self.watched)
        return sorted(
            name for name in self.before.keys() | now.keys() if self.before.get(name) != now.get(name)
        )


def picture(*watched: Any) -> dict[str, Any]:
    """Return what there is, by name."""
    facts = {**_process(), **_thread()}
    for number, each in enumerate(watched):
        if isinstance(each, nn.Module):
            facts |= dict(_of_module(each))
        else:
            tensors = (leaf for leaf in tree_iter(each) if isinstance(leaf, torch.Tensor))
            facts |= {f"input {number}.{place}": _of_tensor(leaf) for place, leaf in enumerate(tensors)}
    return facts


@functools.cache
def _operators() -> list[str]:
    """What autocast or the emulation of Tensor Cores could have replaced."""
    every = torch._C._dispatch_get_all_op_names()
    ours = {
        name
        for name in every
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _KEYS)
    }
    products = "mm addmm bmm addmm_ mm.out convolution convolution_backward _to_copy".split()
    return sorted(ours | {f"aten::{name}" for name in products})


def _process() -> dict[str, Any]:
    hooks = {
        f"hooks for all modules: {name}": list(getattr(nn.modules.module, name) or ())
        for name in _GLOBAL_HOOKS
    }
    return {
        "kernels": {name: torch._C._dispatch_dump(name) for name in _operators()},
        **hooks,
        "default dtype": torch.get_default_dtype(),
        "random numbers": _bytes(torch.get_rng_state()),
        "threads": threading.active_count(),
        "nn.Module.__call__": (nn.Module.__call__, nn.Module._call_impl, nn.Module.__setattr__),
    }


def _thread() -> dict[str, Any]:
    devices = ("cpu", "cuda")
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "autocast on": [torch.is_autocast_enabled(device) for device in devices],
        "autocast's dtypes": [torch.get_autocast_dtype(device) for device in devices],
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "autocast's nesting": _nesting(),
        "gradients on": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "hooks for saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
    }


def _nesting() -> int:
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth


def _of_module(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        at = f"{path or 'model'}: "
        yield at + "class", type(module)
        yield at + "training", module.training
        hooks = {name: list(each) for name, each in vars(module).items() if name.endswith("_hooks")}
        yield at + "hooks", hooks
        plain = {name: _plain(each) for name, each in vars(module).items() if not name.startswith("_")}
        yield at + "attributes", plain
        yield at + "its parameters, buffers and modules", _names(module)
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            yield at + name, _of_tensor(tensor)


def _names(module: nn.Module) -> list[list[str]]:
    return [list(each) for each in (module._parameters, module._buffers, module._modules)]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, list | tuple | dict):
        return type(value).__name__, [_plain(leaf) for leaf in tree_iter(value)]
    return value if isinstance(value, int | float | str | bool | None) else id(value)


def _of_tensor(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    grad = tensor.grad if tensor.is_leaf else None
    return {
        "is": id(tensor),
        "class": type(tensor),
        "dtype": tensor.dtype,
        "requires grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "values": _numbers(tensor),
        "grad": None if grad is None else (id(grad), _numbers(grad)),
        "hooks": (list(tensor._backward_hooks or ()), list(tensor._post_accumulate_grad_hooks or ())),
    }


def _numbers(tensor: torch.Tensor) -> Any:
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        return None
    plain = tensor.detach()
    if plain.is_sparse:
        return [_bytes(part) for part in (plain._indices(), plain._values())]
    wraps = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return "no numbers" if plain.is_meta or wraps else _bytes(plain.as_subclass(torch.Tensor))


def _bytes(tensor: torch.Tensor) -> str:
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return hashlib.sha256(flat.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def leaves_no_trace(look: Callable[..., _T], model: Any, *inputs: Any, **settings: Any) -> _T:
    """Call `look(model, *inputs, **settings)`, whether it raises or not, and see that nothing has changed."""
    watched = [model, inputs, {name: each for name, each in settings.items() if name != "loss"}]
    traces = Traces(*watched)
    try:
        return look(model, *inputs, **settings)
    finally:
        left = traces.left()
        assert not left, f"the x-ray has changed: {', '.join(left)}"
