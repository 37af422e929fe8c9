"""What a rank says to the others by hand, beside what DDP says for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

# Methods of a process group that all ranks get numbers from, and which of their arguments is sent. Not each version of
# PyTorch has all of them.
_SENT = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "broadcast": 0,
    "allgather": 1,
    "_allgather_base": 1,
    "all_gather_single": 1,
}


@dataclass
class Talk:
    """What one rank has done to be in step with the others."""

    barriers: list[int] = field(default_factory=list)  # for each, what `heard` was told to count until then
    numbers: Counter[str] = field(default_factory=Counter)  # floating-point ones, by the name of the call

    def exchanges(self, size: int) -> int:
        """Return how often so many numbers were exchanged, in whichever way it was most."""
        return max(self.numbers.values(), default=0) // size


@contextmanager
def heard(count: Callable[[], int] = lambda: 0) -> Iterator[Talk]:
    """Listen at the process groups themselves, so that it does not matter by which name a function was imported.

    DDP's own exchanges come from C++ and are not counted.
    """
    talk = Talk()

    def barrier(*_: Any, **__: Any) -> None:
        talk.barriers.append(count())

    def send(name: str, *args: Any, **_: Any) -> None:
        if len(args) > _SENT[name]:
            talk.numbers[name] += sum(each.numel() for each in _floats(args[_SENT[name]]))

    notes = {"barrier": barrier, "monitored_barrier": barrier} | {name: partial(send, name) for name in _SENT}
    with ExitStack() as stack:
        for name, note in notes.items():
            method = getattr(dist.ProcessGroup, name, None)
            if method is not None:
                stack.enter_context(mock.patch.object(dist.ProcessGroup, name, _noting(note, method)))
        yield talk


def _floats(sent: Any) -> Iterable[torch.Tensor]:
    """Return the tensors of floating-point numbers in what is sent; objects travel as bytes."""
    tensors = [sent] if isinstance(sent, torch.Tensor) else sent
    return (each for each in tensors if isinstance(each, torch.Tensor) and each.is_floating_point())


def _noting(note: Callable[..., None], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return method(group, *args, **kwargs)

    return call
