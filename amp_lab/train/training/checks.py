"""What a Trainer is not made of, with what to take instead: refused before anything is moved or seeded."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from amp_lab.train.arguments import as_seed, is_whole, kind_of
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.distributed.ranks import Ranks
from amp_lab.train.training.nonfinite import POLICIES

_EVERY: Final = ("step", "epoch")
_HALVES: Final = (torch.float16, torch.bfloat16)


def check_model(model: Any, loss_fn: Any) -> None:
    """Refuse what is no model, or no loss function."""
    if isinstance(model, type):
        raise TypeError(
            f"model is the class {model.__name__} itself: give a model made of it, {model.__name__}(...)"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is an nn.Module, not {kind_of(model)}")
    if isinstance(loss_fn, type):
        raise TypeError(f"loss_fn is the class {loss_fn.__name__} itself: make one, {loss_fn.__name__}()")
    if isinstance(loss_fn, Optimizer):
        raise TypeError("loss_fn is an optimizer: the order is Trainer(model, loss_fn, optimizer)")
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(
            f"loss_fn is a function of outputs and target that returns the loss, not {kind_of(loss_fn)}"
        )


def check_optimizer(optimizer: Any, modules: Mapping[str, nn.Module]) -> None:
    """Refuse an optimizer that does not train the model, or not in a way that a loss scale can go along with."""
    if isinstance(optimizer, type):
        raise TypeError(
            f"optimizer is the class {optimizer.__name__} itself: make one, "
            f"torch.optim.{optimizer.__name__}(model.parameters(), lr=...)"
        )
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer is one of torch.optim, not {kind_of(optimizer)}")
    if _needs_closure(optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} runs the model again within a step, through a closure; GradScaler, "
            "accumulation and clipping cannot go along. Take another optimizer, such as torch.optim.AdamW"
        )
    _check_parameters(optimizer, modules)


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _check_parameters(optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> None:
    own = {each for module in modules.values() for each in module.parameters()}
    held = [each for group in optimizer.param_groups for each in group["params"]]
    strangers = [each for each in held if each not in own]
    if strangers:
        raise ValueError(
            f"{len(strangers):,} of the {len(held):,} tensors that the optimizer holds are not the model's parameters, "
            "and the model would not learn: make the optimizer after the model, of model.parameters(), and again if "
            "the model is replaced (copied, wrapped anew)"
        )
    if not any(each.requires_grad for each in held):
        raise ValueError("no parameter of the optimizer is trained: all have requires_grad=False")
    lazy = [each for each in own if isinstance(each, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ValueError(
            "the model has lazy layers without a shape: run one batch through it before the Trainer"
        )


def check_weights(modules: Mapping[str, nn.Module]) -> None:
    """Refuse weights in 16 bits: autocast casts copies, and the optimizer needs FP32."""
    for module in modules.values():
        for name, each in module.named_parameters():
            if each.is_inference():
                raise ValueError(
                    f"the weight {name!r} was made in torch.inference_mode(), and cannot be trained: make the model "
                    "outside"
                )
            if each.requires_grad and each.dtype in _HALVES:
                raise ValueError(
                    f"the weight {name!r} is {each.dtype}: small updates would be rounded away, and GradScaler refuses "
                    "FP16 gradients. Keep the weights in FP32, model.float(), and leave the 16 bits to precision=..."
                )


def check_clipping(clip_norm: Any, modules: Mapping[str, nn.Module]) -> None:
    """Refuse to clip sparse gradients, whose norm PyTorch does not compute."""
    parts = (each for module in modules.values() for each in module.named_modules())
    sparse = next((name for name, part in parts if getattr(part, "sparse", False) is True), None)
    if clip_norm is not None and sparse is not None:
        raise ValueError(
            f"the module {sparse!r} has sparse=True, and PyTorch computes no norm of sparse gradients: leave "
            "sparse=True out, or clip_norm"
        )


def check_skipping(optimizer: Optimizer, precision: str) -> None:
    """Refuse the optimizer that does not stand a skipped step: PyTorch's fused SGD with momentum (seen up to 2.13).

    It allocates its momentum in the first step, and if that is skipped, leaves in it what the memory held.
    """
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []
    if precision == "fp16" and any(group.get("fused") and group["momentum"] for group in groups):
        raise ValueError(
            "fused SGD with momentum begins with random memory as its momentum if the first step is skipped, as "
            "happens with a loss scale: leave fused=True out, or take another optimizer or precision"
        )


def check_ranks(ranks: Ranks, loss_fn: Any, accumulate: int) -> None:
    """Refuse what does not go with DDP: a loss function with weights of its own (only those of the model are averaged),
    and steps of several micro-batches where it takes every backward pass to be the same."""
    if accumulate > 1 and ranks.settings().get("static_graph"):
        raise ValueError(
            f"accumulate={accumulate} and DistributedDataParallel(static_graph=True) do not go together: DDP averages "
            "in the last micro-batch only, and its graph is another one. Leave static_graph=True out"
        )
    weights = loss_fn.parameters() if isinstance(loss_fn, nn.Module) else ()
    if ranks.size > 1 and any(each.requires_grad for each in weights):
        raise ValueError(
            "loss_fn has weights of its own, whose gradients nobody averages over the ranks: make it a part of the "
            "model before you wrap that in DistributedDataParallel, and let the model return the loss (loss_fn=None)"
        )


def check_scheduler(scheduler: Any, every: Any, optimizer: Optimizer) -> None:
    """Refuse a scheduler that moves another optimizer, or that there is not."""
    if every is not None and every not in _EVERY:
        raise ValueError(f"scheduler_every={every!r}: it is 'step' (after each optimizer step) or 'epoch'")
    if scheduler is None:
        if every is not None:
            raise ValueError(f"scheduler_every={every!r} without a scheduler: give one, or leave it out")
        return
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise TypeError(
            f"scheduler is one of torch.optim.lr_scheduler, made with the optimizer, not {kind_of(scheduler)}"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError("the scheduler moves the learning rate of another optimizer: make it with this one")
    if every == "step" and isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau looks at the dev loss, which there is once an epoch: scheduler_every='epoch'"
        )


def check_numbers(accumulate: Any, clip_norm: Any, seed: Any) -> None:
    """Refuse numbers out of range."""
    if not is_whole(accumulate) or accumulate < 1:
        raise ValueError(
            f"accumulate={accumulate!r}: how many micro-batches make a step, a whole number from 1 on"
        )
    if clip_norm is not None and not (_is_number(clip_norm) and clip_norm > 0):
        raise ValueError(
            f"clip_norm={clip_norm!r}: a number above 0, or None for no clipping (math.inf: measured, not clipped)"
        )
    if seed is not None:
        as_seed("Trainer", seed)


def check_others(metrics: Any, on_nonfinite: Any, checkpoints: Any, callback: Any) -> None:
    """Refuse metrics, policies, checkpoints and callbacks of a wrong kind."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f'metrics is a dict from names to functions, such as {{"accuracy": accuracy}}, not {kind_of(metrics)}'
        )
    for name, metric in (metrics or {}).items():
        if not isinstance(name, str) or not callable(metric):
            raise TypeError(
                f"metrics[{name!r}] is {kind_of(metric)}: a metric is a function of outputs and target"
            )
        if name == "loss":
            raise ValueError("a metric cannot be called 'loss': that name is the loss's own")
    if on_nonfinite not in POLICIES:
        raise ValueError(f"on_nonfinite={on_nonfinite!r}: it is one of {', '.join(map(repr, POLICIES))}")
    if checkpoints is not None and not isinstance(checkpoints, str | PathLike | Checkpoints):
        raise TypeError(
            "checkpoints is a folder, or a Checkpoints(folder) of amp_lab.train.checkpoint, not "
            f"{kind_of(checkpoints)}"
        )
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is a function that takes a record, not {kind_of(callback)}")


def check_scaler(scaler: Any, precision: str) -> None:
    """Refuse a scaler that is not PyTorch's, or that does not go with the precision."""
    if scaler is None:
        return
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler is a torch.amp.GradScaler, not {kind_of(scaler)}")
    if scaler.is_enabled() and precision != "fp16":
        raise ValueError(
            f'precision="{precision}" needs no loss scale: leave scaler out, or take precision="fp16"'
        )
    if precision == "fp16" and not scaler.is_enabled():
        raise ValueError(
            'precision="fp16" with a scaler that is disabled: small gradients would become 0; leave it out'
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)
