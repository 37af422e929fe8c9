"""What plain PyTorch shows about a case: is a scale finite, the largest that is, and the first operator that is not.

Nothing here uses `amp_lab.watching`. Of amp_lab it takes `cuda_autocast` alone, without which a CPU would not cast as
CUDA does. The forward pass is looked at call by call, the backward pass node by node of autograd's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

from amp_lab.autocast.emulate import cuda_autocast
from tests.watching.faults.collection import Case, Fault

LARGEST, SMALLEST = 16, -24  # exponents of the scales that are tried


class First(NamedTuple):
    """Where infinity or NaN begins: the phase, and the name of the call or of the node of the graph."""

    phase: str
    op: str
    absorbed: bool  # the loss and all gradients are finite all the same


@contextmanager
def region(device_type: str, enabled: bool = True) -> Iterator[None]:
    """An FP16 region on CPU tensors that casts as that device type's does."""
    if device_type == "cuda":
        with cuda_autocast(), torch.autocast("cpu", torch.float16, enabled=enabled):
            yield
    else:
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            yield


def loss_of(case: Case, device_type: str, enabled: bool = True) -> torch.Tensor:
    """Run the forward pass."""
    with torch.random.fork_rng(devices=[]), region(device_type, enabled):
        torch.default_generator.manual_seed(1)
        return case.loss_fn(case.model(*case.batch[:-1]), case.batch[-1])


def is_finite(case: Case, device_type: str, scale: float = 1.0, enabled: bool = True) -> bool:
    """Whether loss and gradients of one run are all finite."""
    loss = loss_of(case, device_type, enabled)
    return bool(torch.isfinite(loss)) and _finite_gradients(case, loss, scale)


def _finite_gradients(case: Case, loss: torch.Tensor, scale: float) -> bool:
    weights = [each for each in case.model.parameters() if each.requires_grad]
    grads = torch.autograd.grad(loss.float() * scale, weights, allow_unused=True, retain_graph=True)
    return all(torch.isfinite(each).all() for each in grads if each is not None)


def largest_scale(fault: Fault) -> float | None:
    """Return the largest power of two, of at most 2^16 and at least 2^-24, at which all is finite; by trying all."""
    case = fault.case()
    loss = loss_of(case, fault.device_type)
    if not torch.isfinite(loss):
        return None  # whatever the scale is: it comes after the loss
    for exponent in range(LARGEST, SMALLEST - 1, -1):
        if _finite_gradients(case, loss, 2.0**exponent):
            return 2.0**exponent
    return None


def first_not_finite(fault: Fault, scale: float = 2.0**LARGEST) -> First | None:
    """Return the first call, or node of the backward pass, that makes infinity or NaN of finite numbers."""
    case = fault.case()
    with _Looking() as looking:
        loss = loss_of(case, fault.device_type)
    if looking.first is not None:
        absorbed = is_finite(fault.case(), fault.device_type, scale)
        return First("forward", looking.first, absorbed)
    found: list[str] = []
    for node in _nodes(loss.grad_fn):
        node.register_hook(_look(node.name(), found))
    weights = [each for each in case.model.parameters() if each.requires_grad]
    torch.autograd.grad(loss.float() * scale, weights, allow_unused=True)
    return First("backward", found[0], False) if found else None


def _look(name: str, found: list[str]) -> Callable[[Any, Any], None]:
    def look(made: Any, given: Any) -> None:
        if _all_finite(given) and not _all_finite(made):
            found.append(name)

    return look


def _nodes(start: Any) -> Iterator[Any]:
    seen, waiting = set(), [start]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [each for each, _ in node.next_functions]


def _all_finite(values: Any) -> bool:
    tensors = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
    return all(bool(torch.isfinite(each).all()) for each in tensors if each.is_floating_point())


class _Looking(TorchFunctionMode):
    """Look at what every function of PyTorch gets and gives."""

    first: str | None = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.first is not None:
            return function(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            before = _all_finite([args, kwargs]) and not _infinite_numbers([args, kwargs])
        made = function(*args, **kwargs)
        if before and not _all_finite(made):
            self.first = resolve_name(function) or getattr(function, "__name__", str(function))
        return made


def _infinite_numbers(values: Any) -> bool:
    numbers = [each for each in tree_leaves(values) if isinstance(each, float)]
    return any(each - each != 0 for each in numbers)
