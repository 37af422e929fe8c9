"""What exercise 9.4 evaluates: a model that notes how it is called, batches, metrics that note what they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from amp_lab.course.lessons.l09.runs import DEVICE

IN, OUT = 6, 4
Batches = list[tuple[torch.Tensor, torch.Tensor]]
Metric = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Seen(NamedTuple):
    """One call of the model. `training`: the first part in training mode; `autocast`: its dtype, None if off."""

    size: int
    training: str
    autocast: torch.dtype | None
    graph: bool


class Notes(list[Seen]):
    """A list that a copy of its model shares: whoever evaluates a copy is seen as well."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Notes:
        return self


class Model(nn.Module):
    """Batch norm, dropout and a linear layer: (samples, 6) -> (samples, 4). Each call is noted in `seen`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seen = Notes()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + 3)  # the CPU's: nobody puts a GPU's back
            # Parts of a part: to put the mode of the outer one back wakes the inner ones, too.
            self.first = nn.ModuleDict({"norm": nn.BatchNorm1d(IN), "drop": nn.Dropout(0.5)})
            self.last = nn.Linear(IN, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (samples, 4) scores, in the dtype of the linear layer."""
        on = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if on else None
        modes = [name or "the model" for name, each in self.named_modules() if each.training]
        outputs: torch.Tensor = self.last(self.first["drop"](self.first["norm"](x)))
        self.seen.append(Seen(len(x), modes[0] if modes else "", dtype, outputs.requires_grad))
        return outputs


def batches(sizes: tuple[int, ...], size: float, seed: int) -> Batches:
    """Make batches of (inputs, targets): targets are of the shape of the outputs, `size` times as large."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(each, IN, generator=draw).to(DEVICE),
            (size * (1 + number) * torch.randn(each, OUT, generator=draw)).to(DEVICE),
        )
        for number, each in enumerate(sizes)
    ]


def metric(name: str) -> Metric:
    """Return one of the metrics: each gives the mean over the samples that it gets."""
    return {
        "loss": lambda outputs, targets: (outputs - targets).square().mean(),
        "accuracy": lambda outputs, targets: (outputs.argmax(1) == targets.argmax(1)).double().mean(),
        "error": lambda outputs, targets: (outputs - targets).abs().mean(),
        "top": lambda outputs, targets: outputs.max(1).values.mean(),
        "largest": lambda outputs, targets: (targets * outputs).amax(1).mean(),
    }[name]


class Looks:
    """Notes the dtypes of the outputs that metrics get; with `fails`, the second call raises an error."""

    def __init__(self, *, fails: bool = False) -> None:
        self.dtypes: list[torch.dtype] = []
        self._fails = fails

    def at(self, function: Metric) -> Metric:
        """Return `function`, looked at."""

        def seen(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.dtypes.append(outputs.dtype)
            if self._fails and len(self.dtypes) > 1:
                raise RuntimeError("this metric fails")
            return function(outputs, targets)

        return seen


def snapshot(model: Model) -> dict[str, Any]:
    """Return copies of what an evaluation must leave alone: modes, then weights and statistics, then gradients."""
    found: dict[str, Any] = {
        f"`{f'model.{name}' if name else 'model'}.training`": each.training
        for name, each in model.named_modules()
    }
    found |= {f"`model.{name}`": each.detach().clone() for name, each in model.state_dict().items()}
    found |= {f"`model.{name}.requires_grad`": each.requires_grad for name, each in model.named_parameters()}
    found |= {
        f"whether `model.{name}.grad` is there": each.grad is not None
        for name, each in model.named_parameters()
    }
    return found
