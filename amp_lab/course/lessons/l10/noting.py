"""What is noted of one rank while it runs the script of exercise 10.1."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim.optimizer import register_optimizer_step_post_hook

from amp_lab.course.lessons.l10.comparing import State
from amp_lab.course.lessons.l10.talking import Talk, heard

# Groups are kept until the process ends. If a DDP model is the last that holds one, its threads are waited for with
# Python's lock taken, which they may need themselves: then a script hangs, once in a while, behind its last line.
_KEPT: list[Any] = []


class FixedPort(Exception):
    """Raised in the script where it opens its group at a port of its own."""


class Forward(NamedTuple):
    """A forward pass that a backward pass went through: which samples, and the region's dtype, None outside of one.

    A sample is -1 if it is none of the dataset.
    """

    samples: tuple[int, ...]
    region: torch.dtype | None


class Optimizer(NamedTuple):
    """What made a step: in words, whether it is SGD, and with what beside; its rates, how many parameters it has."""

    shown: str
    sgd: bool
    extras: bool
    rates: tuple[float, ...]
    parameters: int


class Scaler(NamedTuple):
    """How a scaler begins, and how it goes on."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclass
class Seen:
    """What was seen of one rank; filled while it runs, so that it tells of a rank that hangs, too."""

    ranks: list[int] = field(default_factory=list)  # how many there are in each group that was opened
    forwards: list[Forward] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)  # after each update
    scaler: Scaler | None = None  # the first that was updated
    disabled: bool = False  # a scaler that does nothing was updated
    half_loss: bool = False  # a loss in FP16 was scaled
    strange: bool = False  # outputs of the model were not finite
    optimizers: list[Optimizer] = field(default_factory=list)  # one for each step that was made
    talk: Talk = field(default_factory=Talk)
    saved: int = 0  # calls of torch.save for `path`, or for weights
    opened: int = 0  # `path`, to write
    defined: list[str] | None = None  # names in the file, if `train` is none of them
    group_left: bool = False
    weights: State = field(default_factory=dict)
    returned: Any = None  # a list of floats; anything else as (what, its type) in words


def watch(stack: ExitStack, seen: Seen, model: nn.Module, path: str) -> None:
    """Note calls that leave no other trace, wherever the script has them from."""
    seen.talk = stack.enter_context(heard(lambda: len(seen.forwards)))
    port, names = os.environ["MASTER_PORT"], set(model.state_dict())

    def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
        seen.scaler = seen.scaler or _settings(scaler)
        _update(scaler, *args, **kwargs)
        seen.scales.append(scaler.get_scale())
        seen.disabled |= not scaler.is_enabled()

    def scale(scaler: Any, outputs: Any) -> Any:
        seen.half_loss |= isinstance(outputs, torch.Tensor) and outputs.dtype == torch.float16
        return _scale(scaler, outputs)

    def init(*args: Any, **kwargs: Any) -> Any:
        _refuse_fixed_port(port, args, kwargs)
        _init(*args, **kwargs)
        seen.ranks.append(dist.get_world_size())
        _KEPT.append(dist.group.WORLD)

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        seen.saved += str(f) == path or _has_weights(obj, names)
        _save(obj, f, *args, **kwargs)

    class Store(TCPStore):
        def __init__(self, host_name: str, port_here: int = 0, *args: Any, **kwargs: Any) -> None:
            port_here = kwargs.pop("port", port_here)
            if str(port_here) not in ("0", port):
                raise FixedPort(f"the ranks are to meet at port {port_here}")
            super().__init__(host_name, port_here, *args, **kwargs)

    _update, _scale = torch.amp.GradScaler.update, torch.amp.GradScaler.scale
    _init, _save = dist.init_process_group, torch.save
    stack.enter_context(mock.patch.object(torch.amp.GradScaler, "update", update))
    stack.enter_context(mock.patch.object(torch.amp.GradScaler, "scale", scale))
    stack.enter_context(mock.patch.object(dist, "TCPStore", Store))
    _replace_everywhere(stack, _init, init)
    _replace_everywhere(stack, _save, save)
    handle = register_optimizer_step_post_hook(partial(_note_step, seen))
    stack.callback(handle.remove)
    sys.addaudithook(partial(_note_open, seen, path))  # cannot be taken off: the process ends with the play


def _replace_everywhere(stack: ExitStack, old: Any, new: Any) -> None:
    """Replace a function of PyTorch's in all of its modules that have it."""
    modules = [each for name, each in sys.modules.items() if name.partition(".")[0] == "torch"]
    for module in modules:
        for name in [name for name, value in vars(module).items() if value is old]:
            stack.enter_context(mock.patch.object(module, name, new))


def _note_open(seen: Seen, path: str, event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and str(args[0]) == path and type(args[1]) is str and set("wax+") & set(args[1]):
        seen.opened += 1


def _has_weights(obj: Any, names: set[str]) -> bool:
    """Return whether an object holds the weights of the model: another file of the script's is its own business."""
    if isinstance(obj, nn.Module):
        return True
    if not isinstance(obj, Mapping):
        return False
    own = {str(key).removeprefix("module.") for key in obj}
    return bool(own & names) or any(_has_weights(each, names) for each in obj.values())


def _settings(scaler: Any) -> Scaler | None:
    if not scaler.is_enabled():
        return None
    rest = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    return Scaler(scaler.get_scale(), *rest)


def _note_step(seen: Seen, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    groups = optimizer.param_groups
    names = ("momentum", "weight_decay", "maximize")
    extras = [name for name in names if any(each.get(name) for each in groups)]
    shown = f"`{type(optimizer).__name__}`" + (f" with {' and '.join(extras)}" if extras else "")
    sgd = isinstance(optimizer, torch.optim.SGD)
    rates = tuple(float(each.get("lr", math.nan)) for each in groups)
    parameters = sum(len(each["params"]) for each in groups)
    seen.optimizers.append(Optimizer(shown, sgd, sgd and bool(extras), rates, parameters))


def _refuse_fixed_port(port: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `FixedPort` if the group is to meet elsewhere than torchrun says, where nobody may be."""
    method = kwargs.get("init_method") or (args[1] if len(args) > 1 else None)
    if type(method) is str and method.startswith("tcp:") and str(urlsplit(method).port) != port:
        raise FixedPort(f"the group is to meet at {method}")
    if os.environ.get("MASTER_PORT") != port:
        raise FixedPort(f"the group is to meet at port {os.environ.get('MASTER_PORT')}")


def note_forward(
    seen: Seen, rows: torch.Tensor, _model: nn.Module, given: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> None:
    """Note a forward pass when a backward pass first comes through it: evaluation is the script's own business."""
    if not outputs.requires_grad:
        return
    seen.strange |= not bool(outputs.isfinite().all())
    if not seen.ranks and dist.is_initialized():  # it was opened in a way of its own
        seen.ranks.append(dist.get_world_size())
    inputs = given[0]
    same = (inputs.detach()[:, None] == rows.to(inputs.dtype)).all(dim=2)
    samples = [int(row.int().argmax()) if row.any() else -1 for row in same]
    region = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    waiting = [Forward(tuple(samples), region)]
    outputs.register_hook(lambda _gradient: seen.forwards.extend(waiting.pop() for _ in waiting[:]))  # type: ignore[no-untyped-call]
