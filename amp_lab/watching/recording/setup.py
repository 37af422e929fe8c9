"""The facts about models and optimizers when a watch begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from amp_lab.watching.recording.attributes import attribute
from amp_lab.watching.recording.islands import islands
from amp_lab.watching.recording.known import parameters_of
from amp_lab.watching.recording.run import ModelFacts, OptimizerFacts

_HALVES: Final = (torch.float16, torch.bfloat16)
# Layers that keep statistics of what passes, or compute some.
_NORMS: Final = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)
_STATISTICS: Final = ("running_mean", "running_var")


def model_facts(model: nn.Module, optimizers: Sequence[Any]) -> ModelFacts:
    """Return what is known of a model. `optimizers` are all that are watched."""
    parameters = list(model.parameters())
    optimized = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
    trained = [each for each in parameters if each.requires_grad]
    return ModelFacts(
        kind=type(_original(model)).__name__,
        device_type=device_type(model),
        dtypes=frozenset(each.dtype for each in parameters),
        buffers=frozenset(each.dtype for each in model.buffers() if each.is_floating_point()),
        parameters=len(parameters),
        requires_grad=len(trained),
        unoptimized=sum(id(each) not in optimized for each in trained),
        compiled=is_compiled(model),
        half_norms=tuple(_half_norms(model)),
        small_eps=tuple(_small_eps(model)),
        islands=tuple(islands(model)),
    )


def device_type(model: nn.Module) -> str:
    """Return the type of the device of the first parameter, or buffer; "cpu" for a model that has none."""
    for each in (*model.parameters(), *model.buffers()):
        return each.device.type
    return "cpu"


def with_autocast(device_type: str) -> str | None:
    """Return a device type, if there is an autocast for it."""
    try:
        torch.is_autocast_enabled(device_type)
    except (RuntimeError, TypeError):
        return None
    return device_type


def with_abandoned(facts: ModelFacts, model: nn.Module, optimizers: Sequence[Any]) -> ModelFacts:
    """Return the facts about a model, with how many weights have a gradient now that no optimizer uses.

    Of the model and the optimizers as they are now: a head may have been replaced since the watch began.
    """
    used = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
    left, optimized = 0, False
    for each in model.parameters():
        if id(each) in used:
            left, optimized = 0, True
        elif each.grad is not None:
            left += 1
    return replace(facts, abandoned=left if optimized else 0)


def is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile has compiled a model, or a part of it."""
    return any(
        attribute(each, "_orig_mod") is not None or attribute(each, "_compiled_call_impl") is not None
        for each in model.modules()
    )


def _original(model: nn.Module) -> nn.Module:
    inner = attribute(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _half_norms(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if isinstance(module, _NORMS) and any(
            attribute(attribute(module, name, None), "dtype", None) in _HALVES for name in _STATISTICS
        ):
            yield path


def _small_eps(model: nn.Module) -> Iterator[tuple[str, float]]:
    for path, module in model.named_modules():
        eps = attribute(module, "eps", None)
        if not isinstance(eps, float) or not eps:
            continue
        halves = {each.dtype for each in module.parameters(recurse=False)} & set(_HALVES)
        if any(torch.tensor(eps, dtype=dtype) == 0 for dtype in halves):
            yield path, eps


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def optimizer_facts(optimizer: Any, models: Sequence[nn.Module], others: Sequence[Any]) -> OptimizerFacts:
    """Return what is known of an optimizer. `others` are the optimizers that are watched beside it."""
    parameters = parameters_of(optimizer)
    own = {id(each) for each in parameters}
    of_models = {id(each) for model in models for each in model.parameters()}
    of_others = {id(each) for other in others for each in parameters_of(other)}
    defaults = attribute(optimizer, "defaults", None)
    defaults = defaults if isinstance(defaults, dict) else {}
    eps = defaults.get("eps")
    return OptimizerFacts(
        kind=type(optimizer).__name__,
        dtypes=frozenset(each.dtype for each in parameters),
        parameters=len(parameters),
        foreign=sum(id(each) not in of_models for each in parameters),
        requires_grad=sum(each.requires_grad for each in parameters),
        fused=bool(defaults.get("fused")) or bool(attribute(optimizer, "_step_supports_amp_scaling", False)),
        eps=float(eps) if isinstance(eps, int | float) else None,
        has_lr_schedule=any("initial_lr" in group for group in optimizer.param_groups),
        # Keys that OneCycleLR leaves there; what else a scheduler is made of cannot be seen from its optimizer.
        one_cycle=any("max_lr" in group and "min_lr" in group for group in optimizer.param_groups),
        models=frozenset(
            number
            for number, model in enumerate(models)
            if not own.isdisjoint(id(each) for each in model.parameters())
        ),
        shared=sum(id(each) in of_others for each in parameters),
        momentum=max((_number(group.get("momentum")) for group in optimizer.param_groups), default=0.0),
        fresh=not attribute(optimizer, "state", None),
    )
