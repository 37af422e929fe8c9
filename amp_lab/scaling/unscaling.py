"""Dividing an optimizer's gradients by the loss scale, and looking for infinities on the way.

`reference.py` does the same in a loop that is meant to be read; a test holds the two together. Here PyTorch's fused
kernel does the work, with one call for all gradients of a device and dtype, and nothing waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

# What a search leaves on each device: FP32 and 0-dim, 0 if all gradients were finite and 1 if one was not.
Found = dict[torch.device, torch.Tensor]


def unscale(optimizer: torch.optim.Optimizer, inverse_on: Callable[[torch.device], torch.Tensor]) -> Found:
    """Multiply the gradients by 1/scale, in place, and return where an infinity or NaN was among them.

    Args:
        optimizer: its parameters' gradients are meant, those that are not None.
        inverse_on: gives 1/scale as a 0-dim FP32 tensor on a device.

    Raises:
        ValueError: if a gradient is FP16. Divided by the scale in FP16, what the scale has saved would be lost.
    """
    with torch.no_grad():
        return _run(_group(optimizer, refuse_fp16=True), inverse_on)


def search(optimizer: torch.optim.Optimizer) -> Found:
    """Return where an infinity or NaN is among the gradients, and leave them as they are."""
    with torch.no_grad():
        groups = _group(optimizer, refuse_fp16=False)
        return _run(groups, lambda device: torch.ones((), dtype=torch.float32, device=device))


def gradients(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
    """Yield group number, place in the group, parameter and gradient of the parameters that have a gradient."""
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter.grad is not None:
                yield number, place, parameter, parameter.grad


def values_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the tensor with a gradient's numbers: itself if it is dense, else the values that it stores.

    A sparse gradient may hold several values for one place, and counts as their sum. In FP16 the sum may overflow
    where no value did; so then the sums are made, and become the parameter's gradient.
    """
    if not gradient.is_sparse:
        return gradient
    if gradient.dtype is torch.float16:
        parameter.grad = gradient = gradient.coalesce()
    return gradient._values()


Groups = dict[tuple[torch.device, torch.dtype], list[torch.Tensor]]


def _group(optimizer: torch.optim.Optimizer, refuse_fp16: bool) -> Groups:
    """Return the gradients in lists of one device and dtype.

    With 1,000 parameters this is where the time goes. So each tensor is asked for as little as can be, and since
    neighbours are mostly of one kind, a list is looked up only where the kind changes.
    """
    groups: Groups = {}
    last_device = last_dtype = None
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            device, dtype = gradient.device, gradient.dtype
            if dtype is not last_dtype or device != last_device:
                if dtype is torch.float16 and refuse_fp16:
                    raise ValueError(_fp16(optimizer))
                add = groups.setdefault((device, dtype), []).append
                last_device, last_dtype = device, dtype
            add(values_of(parameter, gradient) if gradient.is_sparse else gradient)
    return groups


def _run(groups: Groups, inverse_on: Callable[[torch.device], torch.Tensor]) -> Found:
    found: Found = {}
    for (device, _), values in groups.items():
        if device not in found:
            found[device] = torch.zeros((), dtype=torch.float32, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(values, found[device], inverse_on(device))
    return found


def _fp16(optimizer: torch.optim.Optimizer) -> str:
    number, place, parameter = next(
        (number, place, parameter)
        for number, place, parameter, gradient in gradients(optimizer)
        if gradient.dtype is torch.float16
    )
    return (
        f"unscale_ or step: parameter {place} of group {number}, shape {tuple(parameter.shape)}, has an FP16 gradient. "
        "Divided by the scale in FP16, small gradients become zero again. Keep parameters in FP32 (no model.half()) "
        "and let torch.autocast choose FP16 where it is safe"
    )
