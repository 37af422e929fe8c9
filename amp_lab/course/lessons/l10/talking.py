"""What a rank says to the others by hand, beside what DDP says for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch.distributed as dist


@dataclass
class Talk:
    """How often this rank entered a barrier, and how many numbers it handed to all-reduce."""

    barriers: int = 0
    numbers: int = 0


@contextmanager
def heard() -> Iterator[Talk]:
    """Count on the process groups themselves, so that it does not matter by which name a function was imported.

    DDP's own exchanges come from C++ and are not counted.
    """
    talk = Talk()

    def barrier() -> None:
        talk.barriers += 1

    def reduce(tensors: list[Any], *_: Any, **__: Any) -> None:
        talk.numbers += sum(each.numel() for each in tensors)

    with ExitStack() as stack:
        for name, note in (
            ("barrier", lambda *_, **__: barrier()),
            ("monitored_barrier", lambda *_, **__: barrier()),
            ("allreduce", reduce),
        ):
            method = _noting(note, getattr(dist.ProcessGroup, name))
            stack.enter_context(mock.patch.object(dist.ProcessGroup, name, method))
        yield talk


def _noting(note: Callable[..., None], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return method(group, *args, **kwargs)

    return call
