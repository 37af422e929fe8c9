"""The small network that the loops of lesson 07 train: FP32 weights, and it notes when it is called."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import nn

IN, HIDDEN, OUT = 8, 6, 3
Kind = Literal["plain", "batch norm", "dropout"]


class Call(NamedTuple):
    """Something that a loop did. `autocast` is the dtype in force; `of` says which optimizer or network, by number.

    `size` is the number of examples of a forward pass; `keeps` says that a backward pass builds a graph of its own.
    """

    name: str
    autocast: torch.dtype | None = None
    of: int = 0
    size: int = 0
    keeps: bool = False


def autocast_in_force(kind: str) -> torch.dtype | None:
    """Return autocast's dtype for devices of this kind; None where it is off."""
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _walking_back() -> bool:
    """Return whether a backward pass is under way. No public function of PyTorch says so."""
    return torch._C._current_graph_task_id() != -1


class _Note(torch.autograd.Function):
    """Hands its input on, and notes the way back."""

    @staticmethod
    def forward(x: torch.Tensor, calls: list[Call]) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.calls = inputs  # apart from `forward`: `torch.func` insists on that

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        dtype = autocast_in_force(grad.device.type)
        ctx.calls.append(Call("backward", dtype, keeps=torch.is_grad_enabled()))
        return grad, None


class _Swell(torch.autograd.Function):
    """Hands its input on; the gradient on the way back becomes infinite, as if it had overflowed there."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * torch.inf


class _Drop(nn.Module):
    """Dropout whose mask is the same in every dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 * (torch.rand(x.shape) > 0.5).to(x)) if self.training else x


class _Norm(nn.BatchNorm1d):
    """Batch norm whose statistics do not move a second time if activation checkpointing comes by again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not _walking_back():
            return super().forward(x)
        moved = (self.running_mean, self.running_var, self.weight, self.bias)
        return nn.functional.batch_norm(x, *moved, training=True, momentum=0.0, eps=self.eps)


class Net(nn.Module):
    """Two linear layers, `features` numbers in and `outputs` out. `swells` lets the gradients of its weights overflow.

    What it does goes to `calls`, as one of several networks if it has another `number` than 0.
    """

    def __init__(
        self, calls: list[Call], kind: Kind = "plain", features: int = IN, outputs: int = OUT, number: int = 0
    ) -> None:
        super().__init__()
        self.calls, self.number, self.swells = calls, number, False
        between: dict[Kind, nn.Module] = {"batch norm": _Norm(HIDDEN), "dropout": _Drop()}
        self.first = nn.Linear(features, HIDDEN)
        self.between = between.get(kind, nn.Identity())
        self.last = nn.Linear(HIDDEN, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (examples, outputs) for (examples, features)."""
        if not _walking_back():  # where activation checkpointing computes once more what it has not kept
            self.calls.append(
                Call("forward", autocast_in_force(x.device.type), self.number, len(x) if x.dim() else 1)
            )
        first, last = self.first.weight, self.last.weight
        if self.swells:
            first, last = _Swell.apply(first), _Swell.apply(last)  # type: ignore[no-untyped-call]
        hidden = nn.functional.linear(x, first, self.first.bias)
        hidden = torch.tanh(self.between(hidden))
        outputs = nn.functional.linear(hidden, last, self.last.bias)
        return _Note.apply(outputs, self.calls)  # type: ignore[no-untyped-call, no-any-return]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and note it."""
        self.calls.append(Call("zero", None, self.number))
        super().zero_grad(set_to_none)
