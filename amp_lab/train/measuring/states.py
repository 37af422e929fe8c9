"""How much memory an optimizer's state takes."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from amp_lab.train.measuring.storages import sizes


def state_sizes(
    optimizer: torch.optim.Optimizer, gradients: Mapping[torch.Tensor, torch.Tensor]
) -> tuple[dict[int, int], int]:
    """Return the storages of an optimizer's state, by address, and the bytes that its next step will add to them.

    Adam and SGD with momentum have no state before their first step. What that will make is tried out, with one
    parameter at a time, on a copy of it: the optimizer and the weights stay as they are.

    Args:
        optimizer: any that treats each parameter by itself.
        gradients: of the parameters that have got one; the others will have no state.
    """
    return sizes(dict(optimizer.state)), sum(
        _after_a_step(optimizer, group, parameter, gradients[parameter])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in gradients and not optimizer.state.get(parameter)
    )


def _after_a_step(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
) -> int:
    twin = torch.nn.Parameter(parameter.detach().clone())
    twin.grad = gradient.to(twin.dtype, copy=True)
    alone = object.__new__(type(optimizer))
    vars(alone).update(
        vars(optimizer)
    )  # copy.copy leaves out what a class of somebody's own keeps in attributes
    alone.state = defaultdict(dict)
    alone.param_groups = [{**group, "params": [twin]}]
    # Hooks are the owner's, who does not expect a step now; and `step` may be wrapped, as a scheduler does.
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(alone, name, OrderedDict())
    try:
        type(optimizer).step(alone)
    except TypeError as error:
        raise TypeError(
            f"{type(optimizer).__name__} cannot step without a closure: leave optimizer out, or make one step "
            "before, so that its state is there to be counted"
        ) from error
    return sum(sizes(dict(alone.state)).values())
