"""A small network with three planted faults, each of which only one kind of batch brings out.

None of them is a fault of the loop, nor of the loss scale. What goes wrong, and where, is in the docstrings of the
parts: read them after exercise 7.9.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, FEATURES, SIZE, EXAMPLES = 6, 8, 16, 4
Batch = tuple[torch.Tensor, torch.Tensor]
_SIZES = {".": 0.05, "s": 0.05, "p": 0.05, "m": 64.0, "t": 12288.0}  # of the targets, by the kind of batch


class Attention(nn.Module):
    """Attention of one head, with one projection for queries and keys.

    The scores are products of FP16 numbers, and divided only afterwards: a token with numbers of some hundreds
    makes them pass 65504.
    """

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Linear(SIZE, SIZE, bias=False)
        self.value = nn.Linear(SIZE, SIZE, bias=False)
        self.out = nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        looks = self.look(x)
        scores = looks @ looks.transpose(-2, -1) / math.sqrt(SIZE)
        return self.out(scores.softmax(-1) @ self.value(x))  # type: ignore[no-any-return]


class UnitLength(nn.Module):
    """Bring every token to length 1.

    It is computed in FP32, and still: the derivative of a square root at 0 is infinite, and infinity times 0 is NaN.
    An example that is all padding has tokens of length 0. The forward pass does not show it.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        length = (x * x).sum(-1, keepdim=True).sqrt()
        return x / (length + 1e-6)


class Wide(nn.Module):
    """Two layers; `up` makes numbers large, `down` makes them small again.

    The gradient of `down` is a sum of products with those large numbers: large errors make it pass 65504.
    """

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, 2 * SIZE, bias=False)
        self.down = nn.Linear(2 * SIZE, SIZE, bias=False)
        with torch.no_grad():
            self.up.weight.mul_(gain)
            self.down.weight.div_(gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())  # type: ignore[no-any-return]


class Block(nn.Module):
    """What stands in a layer, of `attn`, `norm` and `ffn`."""

    def __init__(self, parts: Iterable[str]) -> None:
        super().__init__()
        parts = tuple(parts)
        self.attn = Attention() if "attn" in parts else None
        self.norm = UnitLength() if "norm" in parts else None
        self.ffn = Wide(512.0 if "wide" in parts else 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.attn is not None:
            x = x + self.attn(x)
        if self.norm is not None:
            x = self.norm(x)
        return x + self.ffn(x)  # type: ignore[no-any-return]


class Patient(nn.Module):
    """A network that gives one number for each example, made of `layers`: the parts of each, by name.

    An argument such as `("", "attn", "wide norm")` makes three. Its inputs have shape (N, 6, 8), its results (N, 1).
    """

    def __init__(self, layers: Iterable[str] = ("", "attn", "wide norm"), seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's: nobody puts a GPU's back
            self.embed = nn.Linear(FEATURES, SIZE, bias=False)
            self.layers = nn.Sequential(*(Block(each.split()) for each in layers))
            self.head = nn.Linear(SIZE, 1)
            with torch.no_grad():
                self.head.weight.div_(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x)).mean(1))  # type: ignore[no-any-return]


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error, computed in FP32."""
    return F.mse_loss(outputs.float(), targets)


def batch(kind: str = ".", seed: int = 0) -> Batch:
    """Return inputs (4, 6, 8) and targets (4, 1) in FP32.

    Args:
        kind: what is special about them. "." nothing; "s" inputs with a spike, one token of some thousands; "p" an
            example that is padding, all 0; "t" targets in the ten thousands; "m" targets in the tens, which the
            network takes with a smaller scale than 2^16.
        seed: of their numbers.
    """
    if kind not in _SIZES:
        raise ValueError(f"no batch is of kind {kind!r}: choose one of {', '.join(map(repr, _SIZES))}")
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, TOKENS, FEATURES, generator=random)
    y = _SIZES[kind] * (1 + 0.1 * torch.randn(EXAMPLES, 1, generator=random))
    if kind == "s":
        x[1, 2] *= 1000
    elif kind == "p":
        x[2] = 0
    return x, y


def batches(kinds: str, seed: int = 0) -> list[Batch]:
    """Return a batch for each letter of `kinds`; see `batch`."""
    return [batch(kind, 1000 * seed + number) for number, kind in enumerate(kinds)]
