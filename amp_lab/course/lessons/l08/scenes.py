"""The models of exercise 8.1: small, and no shape of an activation is the shape of a weight."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
Case = tuple[nn.Module, torch.Tensor, torch.dtype]


class Scene(NamedTuple):
    """A model in words and how to build it, the shape of a batch, and what it is asked for."""

    words: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: torch.dtype = FP32
    training: bool = True


class _From(nn.Module):
    """A layer and what a function makes of its output."""

    def __init__(self, layer: nn.Module, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


@dataclass
class _Piece:
    """Memory, and who uses it: a call that returns None when nobody does any more."""

    memory: np.ndarray[Any, Any]
    user: Callable[[], np.ndarray[Any, Any] | None] = lambda: None


class Pool:
    """Memory for tensors of FP32. What nobody holds any more is given out again at once, as PyTorch does on a GPU."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def take(self, shape: torch.Size) -> torch.Tensor:
        """Return a tensor whose numbers are whatever they were."""
        free = (piece for piece in self._pieces if piece.user() is None and piece.memory.shape == shape)
        piece = next(free, None)
        if piece is None:
            piece = _Piece(np.empty(shape, dtype=np.float32))
            self._pieces.append(piece)
        view = piece.memory.view()
        piece.user = weakref.ref(view)
        return torch.from_numpy(view)  # holds the view for as long as its storage lives


class _Square(torch.autograd.Function):
    """The square of its input; backward needs the input only, and this keeps the output as well."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pool: Pool) -> torch.Tensor:
        square = pool.take(x.shape).copy_(x * x)
        ctx.save_for_backward(x, square)
        return square

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, _ = ctx.saved_tensors
        return 2 * x * grad, None


class _Squares(nn.Module):
    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Square.apply(x, self._pool)  # type: ignore[no-untyped-call]
        return result


class _Twice(nn.Module):
    """One layer, used three times: autocast casts its weight once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        result: torch.Tensor = layer(layer(layer(x).relu()).relu())
        return result


def _attention(x: torch.Tensor) -> torch.Tensor:
    query, key, value = x.chunk(3, dim=-1)
    return (query @ key.mT).softmax(dim=-1) @ value


def _weighted(x: torch.Tensor) -> torch.Tensor:
    return x * x.mean(dim=1, keepdim=True).expand_as(x)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def _deep() -> nn.Module:
    layers = [layer for _ in range(6) for layer in (nn.Linear(9, 9), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(9, 2))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    model[2].requires_grad_(False)
    return model


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 3))


def _convolution() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


def _pooled() -> nn.Module:
    pool = Pool()
    return nn.Sequential(nn.Linear(6, 8), *(_Squares(pool) for _ in range(6)), nn.Linear(8, 2))


def _in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class _Mask(nn.Module):
    """Multiplies by a mask that is a buffer, and in no `state_dict()`."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(5, 8).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mask


def _masked() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), _Mask(), nn.Tanh(), nn.Linear(8, 3))


def _dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 3))


_MLP = "Linear(6, 8) → ReLU → Linear(8, 4)"
_DEEP = "six times Linear(9, 9) → ReLU, then Linear(9, 2)"
_WIDE = "Linear(6, 64) → ReLU → Linear(64, 48) → ReLU → Linear(48, 3)"
_FROZEN = "Linear(6, 8) → GELU → a frozen Linear(8, 16) → Tanh → Linear(16, 3)"
_ATTENTION = "one Linear(6, 24) whose output is cut into query, key, value"
_SLICED = "Linear(6, 8) → the square of its first two columns"
_NORMED = "Linear(6, 8) → BatchNorm1d → ReLU → Linear(8, 3)"
_DROPPED = "Linear(6, 16) → LayerNorm → Dropout → GELU → Linear(16, 3)"

PLAIN = (
    Scene(_MLP, _mlp, (5, 6)),
    Scene("Conv1d(2, 3, 3) → ReLU → Flatten → Linear(12, 2)", _convolution, (5, 2, 6)),
    Scene("Linear(6, 8) → six squares, in memory that is reused as on a GPU → Linear(8, 2)", _pooled, (5, 6)),
    Scene(_FROZEN.replace("a frozen ", ""), lambda: _frozen().requires_grad_(True), (5, 6)),
)
LOWER = (
    Scene(_MLP, _mlp, (5, 6), FP16),
    Scene(_WIDE, _wide, (5, 6), BF16),
    Scene(_FROZEN, _frozen, (5, 6), FP16),
    Scene(_DEEP, _deep, (5, 9), BF16),
    Scene(_WIDE, _wide, (5, 6)),
)
SHARED = (
    Scene(_SLICED, lambda: _From(nn.Linear(6, 8), lambda x: x[:, :2].square()), (5, 6)),
    Scene(
        "Linear(6, 8), each row times its own mean", lambda: _From(nn.Linear(6, 8), _weighted), (5, 6), FP16
    ),
    Scene(_ATTENTION, lambda: _From(nn.Linear(6, 24), _attention), (2, 5, 6)),
    Scene(_ATTENTION, lambda: _From(nn.Linear(6, 24), _attention), (2, 5, 6), BF16),
    Scene("one Linear(7, 7) three times, ReLU between", _Twice, (5, 7), FP16),
    Scene(_MLP.replace("ReLU", "ReLU in place"), _in_place, (5, 6), FP16),
)
STANDING = (
    Scene(_NORMED, _normed, (5, 6)),
    Scene("Linear(6, 8) → times a mask, a buffer → Tanh → Linear(8, 3)", _masked, (5, 6)),
    Scene(_FROZEN, _frozen, (5, 6)),
    Scene(_DROPPED, _dropped, (5, 6), FP16),
    Scene(_DROPPED, _dropped, (5, 6), FP16, training=False),
    Scene(_NORMED, _normed, (5, 6), BF16, training=False),
)


def cases(scenes: Sequence[Scene]) -> tuple[Case, ...]:
    """Return a new model and a new batch for each scene."""
    generator = torch.Generator().manual_seed(8)
    made: list[Case] = []
    for scene in scenes:
        model = scene.build().train(scene.training)
        model.words = scene.words  # type: ignore[assignment]
        model.calls = _note_calls(model)  # type: ignore[assignment]
        made.append((model, torch.randn(scene.shape, generator=generator), scene.dtype))
    return tuple(made)


def _note_calls(model: nn.Module) -> list[str]:
    """Return a list to which each call of the model, or of a copy of it, adds the dtype of autocast in words."""
    calls: list[str] = []

    def note(_module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        kind = given[0].device.type
        calls.append(str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else str(FP32))

    model.register_forward_pre_hook(note)
    return calls


def in_words(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> str:
    """Return a call in words."""
    mode = "" if model.training else ", in eval mode,"
    return f"`activation_bytes(model, batch, {dtype})` with {model.words}{mode} and a batch of {tuple(batch.shape)}"


def standing(model: nn.Module) -> dict[str, str]:
    """Return how a model stands, in words: what a call must leave as it was."""
    names = {module: name or "the model" for name, module in model.named_modules()}
    return {
        **{f"the dtype of `{name}`": str(each.dtype) for name, each in model.named_parameters()},
        **{f"the gradient of `{name}`": _grad(each) for name, each in model.named_parameters()},
        **{f"`training` of {name}": str(module.training) for module, name in names.items()},
        **{f"the number of forward hooks of {name}": _hooks(module) for module, name in names.items()},
    }


def _grad(parameter: nn.Parameter) -> str:
    return "None" if parameter.grad is None else "a tensor"


def _hooks(module: nn.Module) -> str:
    return str(len(module._forward_hooks) + len(module._forward_pre_hooks))
