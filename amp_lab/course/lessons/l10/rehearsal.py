"""A rehearsal of the script of exercise 10.1: `train` on two ranks, as torchrun would start it, and watched."""

from __future__ import annotations

import os
import sys
import types
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.utils.data import TensorDataset

from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.staging import Stage
from amp_lab.course.lessons.l10.comparing import State
from amp_lab.course.lessons.l10.noting import Seen, note_forward, watch

RANKS, EPOCHS, SAMPLES, BATCH = 2, 4, 23, 5  # an odd number of samples; EPOCHS is not the default of `train`
RATE = 0.1
OUTLIER = 17  # the sample whose gradient overflows on the rank that has it
_IN, _HIDDEN, _CLASSES = 5, 8, 3
_FAR = 3e4
_HOST = "127.0.0.1"


def make_data(far: float = _FAR) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all inputs, (23, 5), and targets, (23,); inputs of one class lie together, as in many a file.

    `far` is what makes the outlier one: at 3e4 its gradient overflows, at NaN its loss is NaN.
    """
    draw = torch.Generator().manual_seed(3)
    targets = torch.arange(SAMPLES) * _CLASSES // SAMPLES
    inputs = torch.randn(SAMPLES, _IN, generator=draw) + targets[:, None]
    inputs[:, -1] = 0
    inputs[OUTLIER, -1] = far
    return inputs, targets


def make_model() -> nn.Module:
    """Make the model, the same on all ranks. The outlier's weights are 0: it overflows in the backward pass alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(11)
        model = nn.Sequential(nn.Linear(_IN, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _CLASSES))
    with torch.no_grad():
        model.get_submodule("0").get_parameter("weight")[:, -1] = 0
    return model


def play(stage: Stage, code: str, filename: str, path: str, epochs: int = EPOCHS, far: float = _FAR) -> None:
    """Run the file and call its `train`, with the environment that torchrun gives to a rank."""
    seen = Seen()
    stage.seen["script"] = seen
    store = _swap_group_for_environment(stage)
    model = make_model()
    model.register_forward_hook(partial(note_forward, seen, make_data()[0]))
    with ExitStack() as stack:
        watch(stack, seen, model, path)
        script = stage.run(_load, code, filename)
        train = script.get("train")
        if not callable(train):
            seen.defined = [name for name in script if not name.startswith("__")]
            return
        arguments = (model, TensorDataset(*make_data(far)), torch.device("cpu"), path)
        got = stage.run(train, *arguments, epochs=epochs, batch_size=BATCH)
    seen.returned = _plain(got)
    seen.group_left = dist.is_initialized()
    seen.weights = _weights(model)
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
    sys.argv = [filename]
    exec(compile(code, filename, "exec"), module.__dict__)
    return module.__dict__


def _weights(model: nn.Module) -> State:
    """Return the parameters as plain tensors; FSDP puts parts of them, of a type of its own, in their place."""
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    return {name: each.clone() for name, each in parameters.items() if type(each) is torch.Tensor}


def _plain(got: Any) -> Any:
    if type(got) is list and all(type(each) in (int, float) for each in got):
        return [float(each) for each in got]
    return None if got is None else (describe(got), kind(got))
