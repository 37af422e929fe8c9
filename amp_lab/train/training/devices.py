"""Where a Trainer computes, and bringing model, loss function and optimizer there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from amp_lab.device import describe_device
from amp_lab.train.distributed.several import ddp_of


def device_for(model: nn.Module, wanted: Any) -> torch.device:
    """Return the device to train on: the wanted one, else the model's own; but a model on the CPU goes to CUDA, if any.

    A DistributedDataParallel stays where it is: it has laid out its messages for the device on which it was made.

    Raises:
        TypeError, ValueError: for a device that is not here, and a model that lies on several, or on none (meta).
    """
    found = {each.device for each in (*model.parameters(), *model.buffers())}
    if torch.device("meta") in found:
        raise ValueError(
            "the model lies on the meta device, without values: model.to_empty(device=...), then load or make its "
            "weights, then make the optimizer and the Trainer"
        )
    if ddp_of(model) is not None and len(found) == 1:
        return _own_of_ddp(found.pop(), wanted)
    if wanted is not None:
        return torch.device(describe_device(wanted).device)
    if len(found) > 1:
        where = ", ".join(sorted(map(str, found)))
        raise ValueError(
            f"the model lies on {where}: Trainer needs it on one real device; name it, device=..."
        )
    own = found.pop() if found else torch.device("cpu")
    if own.type == "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return own


def _own_of_ddp(own: torch.device, wanted: Any) -> torch.device:
    named = own if wanted is None else torch.device(describe_device(wanted).device)
    if named.type != own.type or named.index not in (None, own.index):
        raise ValueError(
            f"the DistributedDataParallel lies on {own}, and device={str(wanted)!r} is another one: move the model "
            "first, model.to(device), and wrap it there"
        )
    return own


def move(modules: Sequence[nn.Module], optimizer: Optimizer, device: torch.device) -> None:
    """Move modules to the device. Parameters stay the same objects, so the optimizer still holds them."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    moved = any(each.device != device for each in parameters)
    for module in modules:
        module.to(device)
    if moved and optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())  # which brings its state to its parameters
