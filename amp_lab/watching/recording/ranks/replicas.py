"""What is asked of models that several processes train together: which parts DDP looks after, and what they draw."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# These optimizers let the ranks go apart on purpose, and bring them together now and then.
_AVERAGING: Final = ("PostLocalSGDOptimizer",)


def wrappers(models: Sequence[nn.Module]) -> list[DistributedDataParallel]:
    """Return the DDP wrappers in the watched models."""
    return [each for model in models for each in model.modules() if isinstance(each, DistributedDataParallel)]


def sends_buffers(wrapper: DistributedDataParallel) -> bool:
    """Return whether a forward pass begins with the buffers of one rank, sent to all."""
    return bool(wrapper.will_sync_module_buffers())  # type: ignore[no-untyped-call]


def shape_of(models: Sequence[nn.Module]) -> int:
    """Return a number that is the same for models of the same parts: on every rank the same."""
    names = [(name, tuple(each.shape)) for model in models for name, each in model.named_parameters()]
    return zlib.crc32(repr(names).encode())


def averages_weights(optimizers: Iterable[Any]) -> bool:
    """Return whether an optimizer lets the weights of ranks differ for a while."""
    return any(type(each).__name__ in _AVERAGING for each in optimizers)


def compared_parameters(
    found: Sequence[DistributedDataParallel], models: Sequence[nn.Module]
) -> list[nn.Parameter]:
    """Return the parameters that must be equal on all ranks: those that DDP looks after, or all."""
    if not found:
        return [each for model in models for each in model.parameters() if each.requires_grad]
    return [
        parameter
        for wrapper in found
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and name not in wrapper.parameters_to_ignore
    ]


def device_of(parameters: Sequence[nn.Parameter]) -> torch.device:
    """Return the device of the first parameter; of none, the CPU."""
    return parameters[0].device if parameters else torch.device("cpu")


def is_gradient(tensor: Any, parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether a tensor is the gradient of one of these parameters."""
    if not isinstance(tensor, torch.Tensor):
        return False
    at = tensor.data_ptr()
    return any(each.grad is not None and each.grad.data_ptr() == at for each in parameters)


def random_state(device: torch.device) -> int | None:
    """Return the checksum of the state of the generator that dropout on a device draws from."""
    if device.type == "cpu":
        return zlib.crc32(torch.get_rng_state().numpy().tobytes())
    if device.type == "cuda":
        return zlib.crc32(torch.cuda.get_rng_state(device).numpy().tobytes())
    return None


def is_captured(device: torch.device) -> bool:
    """Return whether what is computed on a device now becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
