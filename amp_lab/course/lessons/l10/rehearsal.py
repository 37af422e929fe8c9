"""A rehearsal of the script of exercise 10.1: `train` on two ranks, as torchrun would start it, and watched."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.launched import Stage

RANKS, EPOCHS, SAMPLES, BATCH = 2, 3, 24, 5
RATE = 0.1
OUTLIER = 17  # the sample whose gradient overflows on the rank that has it
_IN, _HIDDEN, _CLASSES = 5, 8, 3
_FAR = 3e4
_HOST = "127.0.0.1"

# Groups are kept until the process ends. If a DDP model is the last that holds one, its threads are waited for with
# Python's lock taken, which they may need themselves: then a script hangs, once in a while, behind its last line.
_KEPT: list[Any] = []

State = dict[str, torch.Tensor]


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all inputs, (24, 5), and targets, (24,); inputs of one class lie together, as in many a file."""
    draw = torch.Generator().manual_seed(3)
    targets = torch.arange(SAMPLES) * _CLASSES // SAMPLES
    inputs = torch.randn(SAMPLES, _IN, generator=draw) + targets[:, None]
    inputs[:, -1] = 0
    inputs[OUTLIER, -1] = _FAR
    return inputs, targets


def make_model() -> nn.Module:
    """Make the model, the same on all ranks. The outlier's weights are 0: it overflows in the backward pass alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(11)
        model = nn.Sequential(nn.Linear(_IN, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _CLASSES))
    with torch.no_grad():
        model.get_submodule("0").get_parameter("weight")[:, -1] = 0
    return model


class FixedPort(Exception):
    """Raised in the script where it opens its group at a port of its own."""


class Forward(NamedTuple):
    """A forward pass of the model: which samples, and the dtype of the region, None outside of one."""

    samples: tuple[int, ...]
    region: torch.dtype | None


@dataclass
class Seen:
    """What was seen of one rank; filled while it runs, so that it tells of a rank that hangs, too."""

    forwards: list[Forward] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)  # after each update
    steps: int = 0  # of an optimizer
    barriers: int = 0
    saved: int = 0  # calls of torch.save
    defined: list[str] = field(default_factory=list)  # names in the file, if `train` is none of them
    group_left: bool = False
    weights: State = field(default_factory=dict)
    returned: Any = None  # a list of floats; anything else as (what, its type) in words


def play(stage: Stage, code: str, filename: str, path: str) -> None:
    """Run the file and call its `train`, with the environment that torchrun gives to a rank."""
    seen = Seen()
    stage.seen["script"] = seen
    store = _swap_group_for_environment(stage)
    model = make_model()
    model.register_forward_pre_hook(partial(_note_forward, seen))
    with ExitStack() as stack:
        _watch(stack, seen)
        script = stage.run(_load, code, filename)
        train = script.get("train")
        if not callable(train):
            seen.defined = [name for name in script if not name.startswith("__")]
            return
        arguments = (model, TensorDataset(*make_data()), torch.device("cpu"), path)
        got = stage.run(train, *arguments, epochs=EPOCHS, batch_size=BATCH)
    seen.returned = _plain(got)
    seen.group_left = dist.is_initialized()
    seen.weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    stage.meet()
    del store


def _swap_group_for_environment(stage: Stage) -> TCPStore | None:
    """Close the group of the check, and set what torchrun sets: the script opens a group of its own."""
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False) if stage.rank == 0 else None
    ports = [store.port if store else 0]
    dist.broadcast_object_list(ports)
    dist.destroy_process_group()
    os.environ |= {
        "RANK": str(stage.rank),
        "LOCAL_RANK": str(stage.rank),
        "WORLD_SIZE": str(stage.ranks),
        "LOCAL_WORLD_SIZE": str(stage.ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(ports[0]),
        # As under torchrun: the store is there, rank 0 need not make one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return store


def _load(code: str, filename: str) -> dict[str, Any]:
    """Run the file as an import does: not as the main program, so that it only defines."""
    module = types.ModuleType("train_ddp")
    module.__file__ = filename
    sys.modules["train_ddp"] = module
    sys.path.insert(0, str(Path(filename).parent))
    exec(compile(code, filename, "exec"), module.__dict__)
    return module.__dict__


def _watch(stack: ExitStack, seen: Seen) -> None:
    """Note calls that leave no other trace, wherever the script has them from."""

    def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
        _update(scaler, *args, **kwargs)
        seen.scales.append(scaler.get_scale())

    port = os.environ["MASTER_PORT"]

    def init(*args: Any, **kwargs: Any) -> Any:
        _refuse_fixed_port(port, args, kwargs)
        _init(*args, **kwargs)
        _KEPT.append(dist.group.WORLD)

    _update, _init = torch.amp.GradScaler.update, dist.init_process_group
    for owner, name, new in (
        (torch.amp.GradScaler, "update", update),
        (dist, "init_process_group", init),
        (dist, "barrier", _counting(seen, "barriers", dist.barrier)),
        (torch, "save", _counting(seen, "saved", torch.save)),
    ):
        stack.enter_context(mock.patch.object(owner, name, new))
    handle = register_optimizer_step_post_hook(lambda *_: setattr(seen, "steps", seen.steps + 1))
    stack.callback(handle.remove)


def _counting(seen: Seen, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        setattr(seen, name, getattr(seen, name) + 1)
        return function(*args, **kwargs)

    return call


def _refuse_fixed_port(port: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `FixedPort` if the group is to meet elsewhere than torchrun says, where nobody may be."""
    method = kwargs.get("init_method") or (args[1] if len(args) > 1 else None)
    if type(method) is str and method.startswith("tcp:"):
        raise FixedPort(f"the group is to meet at {method}")
    if os.environ.get("MASTER_PORT") != port:
        raise FixedPort(f"the group is to meet at port {os.environ.get('MASTER_PORT')}")


def _note_forward(seen: Seen, _model: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    inputs = given[0]
    rows = make_data()[0].to(inputs.dtype)
    same = (inputs.detach()[:, None] == rows).all(dim=2)
    samples = [int(row.int().argmax()) if row.any() else -1 for row in same]
    region = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    seen.forwards.append(Forward(tuple(samples), region))


def _plain(got: Any) -> Any:
    if type(got) is list and all(type(each) in (int, float) for each in got):
        return [float(each) for each in got]
    return None if got is None else (describe(got), kind(got))
