"""The network between the ranks: what a collective takes, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from amp_lab.train.simulating.tokens import is_number

MB: Final = 10**6
Compression = Literal["none", "fp16", "bf16"]
DTYPES: Final = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Wire:
    """How fast ranks talk. All are equally far from each other, and one collective is under way at a time.

    Args:
        latency_ms: what a collective takes however small it is, in milliseconds.
        gb_per_s: bytes per second from a rank to the next, in units of 10^9.
        compress: the dtype in which buckets travel.
    """

    latency_ms: float = 0.1
    gb_per_s: float = 10.0
    compress: Compression = "none"

    def __post_init__(self) -> None:
        if not is_number(self.latency_ms) or not 0 <= self.latency_ms < math.inf:
            raise ValueError(f"latency_ms={self.latency_ms!r}: give milliseconds, 0 or more")
        if not is_number(self.gb_per_s) or not 0 < self.gb_per_s < math.inf:
            raise ValueError(f"gb_per_s={self.gb_per_s!r}: give a bandwidth above 0, such as 10.0")
        if self.compress not in DTYPES:
            raise ValueError(f"compress={self.compress!r}: give one of {', '.join(map(repr, DTYPES))}")

    def ms(self, size: int, ranks: int) -> float:
        """Return how long an all-reduce of `size` bytes takes by the ring algorithm, in milliseconds.

        The bytes are cut into n parts, for n ranks. In n - 1 rounds each rank sends one part to the next, which adds
        its own to it; in n - 1 more, the sums go round.
        """
        if ranks == 1:
            return 0.0
        return self.latency_ms + 2 * (ranks - 1) / ranks * size / (self.gb_per_s * 1e9) * 1e3

    def bytes(self, mb: float) -> int:
        """Return the bytes that a bucket of so many megabytes of FP32 gradients has on its way."""
        return round(mb * MB * DTYPES[self.compress].itemsize / 4)

    def average(self, values: Sequence[float]) -> float:
        """Return the mean of one gradient over the ranks, as DDP makes it: each is divided, then all are added."""
        sent = torch.tensor(values, dtype=torch.float32).to(DTYPES[self.compress])
        return float((sent / len(values)).sum().float())
