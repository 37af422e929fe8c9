"""Files that come from elsewhere, for exercise 9.3: from a machine with GPUs, and from somebody who means no good."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

RAN: list[str] = []  # what the code in a file has said


@contextlib.contextmanager
def says_gpu() -> Iterator[None]:
    """Let PyTorch write into a file that its tensors lie on a GPU that no machine has: the hundredth."""
    serialization: Any = torch.serialization
    real = serialization.location_tag
    serialization.location_tag = lambda _storage: "cuda:99"
    try:
        yield
    finally:
        serialization.location_tag = real


class Hostile:
    """Unpickled, it calls a function: a harmless one here."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _run_by_file, ("the code in the file ran",)


def _run_by_file(words: str) -> None:
    RAN.append(words)
