"""What a rank does, one token for each call in a training loop. Times are in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, TypeGuard

from amp_lab.train.arguments import is_whole, kind_of


def is_number(value: Any) -> TypeGuard[float]:
    """Tell numbers, NumPy's too, from everything else; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _are_numbers(value: Any) -> bool:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return all(map(is_number, value if several else [value]))


# What the fields of tokens may hold, by their names.
_FIELDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "ms": (lambda it: is_number(it) and 0 <= it < math.inf, "a time in milliseconds, 0 or more"),
    "loss": (is_number, "a number, such as 1.0 or math.inf"),
    "value": (is_number, "a number, such as 1.0 or math.inf"),
    "gradients": (_are_numbers, "a number, such as 1.0 or math.inf, or a list with one for each bucket"),
    "max_norm": (lambda it: is_number(it) and it > 0, "a norm above 0"),
    "bucket": (lambda it: is_whole(it) and it >= 0, "the number of a bucket, 0 or more"),
    "source": (lambda it: is_whole(it) and it >= 0, "the number of a rank, 0 or more"),
    "what": (lambda it: isinstance(it, str), "words that name it"),
}


class Token:
    """One call of a training loop.

    Raises:
        ValueError: if it is made with what makes no sense, such as a negative time.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            allowed, advice = _FIELDS[name]
            if not allowed(value):
                raise ValueError(f"{type(self).__name__}({name}={value!r}): give {advice}")


@dataclass(frozen=True)
class Load(Token):
    """Fetch a batch. A rank that takes long here is a straggler."""

    ms: float = 1.0


@dataclass(frozen=True)
class Forward(Token):
    """Run the model on a micro-batch; the program gets `loss`, a number of this rank alone.

    As in DDP, a forward outside `NoSync` prepares one all-reduce, in the next backward; a second forward before that
    prepares no second one. It stays prepared over a `Skip`: then a backward inside `NoSync` sends its gradients, too.
    """

    ms: float = 5.0
    loss: float = 1.0


@dataclass(frozen=True)
class Backward(Token):
    """Add to the gradients, bucket after bucket from the last layer on; each full bucket is all-reduced at once.

    `gradients`: what this rank's micro-batch gives, before loss scaling: one number for all buckets, or one for each.
    """

    ms: float = 10.0
    gradients: float | Sequence[float] = 0.1


class NoSync(Token):
    """Do these tokens inside `with model.no_sync():`."""

    def __init__(self, *tokens: Token) -> None:
        for token in tokens:
            if not isinstance(token, Token):
                raise TypeError(
                    f"NoSync takes tokens, as in NoSync(Forward(), Backward()), not {kind_of(token)}"
                )
        self.tokens = tokens

    def __repr__(self) -> str:
        return f"NoSync({', '.join(map(repr, self.tokens))})"


@dataclass(frozen=True)
class SetGradient(Token):
    """Write into a gradient of this rank alone, after the averaging: a hook of one's own, or a fault of memory."""

    value: float
    bucket: int = 0


@dataclass(frozen=True)
class Unscale(Token):
    """`scaler.unscale_(optimizer)`; the program gets found_inf, a bool of this rank alone."""

    ms: float = 0.5


@dataclass(frozen=True)
class Clip(Token):
    """`clip_grad_norm_` of the gradients as they are, scaled or not; the program gets their norm before."""

    max_norm: float = 1.0
    ms: float = 0.5


@dataclass(frozen=True)
class Step(Token):
    """`scaler.step(optimizer)`, then `optimizer.zero_grad()`; the program gets whether the weights have moved."""

    ms: float = 1.0


@dataclass(frozen=True)
class Skip(Token):
    """Leave this step out by the program's own decision (`continue`): its gradients are thrown away."""

    ms: float = 1.0


@dataclass(frozen=True)
class Update(Token):
    """`scaler.update()`; the program gets the new loss scale of this rank."""

    ms: float = 0.5


@dataclass(frozen=True)
class AllReduce(Token):
    """`dist.all_reduce` of one number, and wait for it; the program gets the sum over all ranks."""

    value: float = 0.0
    what: str = "a number"


@dataclass(frozen=True)
class Broadcast(Token):
    """`dist.broadcast` of one number, and wait for it; the program gets that of rank `source`."""

    value: float = 0.0
    source: int = 0
    what: str = "a number"


@dataclass(frozen=True)
class Barrier(Token):
    """`dist.barrier()`: wait until all ranks are here."""


@dataclass(frozen=True)
class Evaluate(Token):
    """Run `model.module` on dev batches, without gradients. Nothing in it talks to other ranks.

    (DDP's own forward would broadcast the buffers of a model that has some, such as BatchNorm's.)
    """

    ms: float = 5.0


@dataclass(frozen=True)
class Save(Token):
    """Write a checkpoint. Nothing in it talks to other ranks."""

    ms: float = 5.0
