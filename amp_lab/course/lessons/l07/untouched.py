"""Whether code that was only to look at a model has left it as it was: its numbers, its gradients, its settings."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def first_change(model: nn.Module, before: nn.Module) -> str | None:
    """Return in words what is new in `model`; None if it is like `before`, which nobody has touched.

    Runs no forward pass, and compares without an error whatever became of the parameters: another dtype, another
    device, another shape.
    """
    return next(_changes(model, before), None)


def _changes(model: nn.Module, before: nn.Module) -> Iterator[str]:
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    if modules.keys() != dict(before.named_modules()).keys():
        yield "other modules"
        return
    for name, was in before.named_parameters():
        now = parameters.get(name)
        if now is None:
            yield f"no `{name}`"
        else:
            yield from _of_parameter(name, now, was)
    for name, module in modules.items():
        yield from _of_module(
            f"`{name}`" if name else "the outermost module", module, before.get_submodule(name)
        )


def _of_parameter(name: str, now: nn.Parameter, was: nn.Parameter) -> Iterator[str]:
    for value, right in ((now.dtype, was.dtype), (now.device, was.device)):
        if value != right:
            yield f"`{name}` as `{value}`"
            return  # numbers of another dtype or device are not to be compared
    if not torch.equal(now.detach(), was.detach()):
        yield f"other numbers in `{name}`"
    if now.grad is not None:
        yield f"a gradient in `{name}.grad`"
    if now.requires_grad != was.requires_grad:
        yield f"`requires_grad` = `{now.requires_grad}` in `{name}`"
    if any(getattr(now, each, None) for each in _PARAMETER_HOOKS):
        yield f"a hook on `{name}`"


def _of_module(place: str, now: nn.Module, was: nn.Module) -> Iterator[str]:
    if now.training != was.training:
        yield f"`training` = `{now.training}` in {place}"
    if any(getattr(now, each, None) for each in _HOOKS):
        yield f"a hook on {place}"
    if "forward" in vars(now):
        yield f"another `forward` in {place}"
