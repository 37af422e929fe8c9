"""How well one number format is supported: the words for it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "native",  # FP32: what everything else is compared with
    "tensor cores",  # NVIDIA's matrix units
    "matrix units",  # AMD's matrix cores, Intel's AMX tiles
    "vector units",  # ordinary arithmetic units compute in this format
    "emulated",  # kept in this format, computed in another
    "slow",  # works, at a fraction of FP32's speed
    "storage only",  # kept and cast, no matrix products
    "none",
    "unknown",
]


@dataclass(frozen=True)
class FormatSupport:
    """One number format on one device: what kind of support it has and what that means for a learner."""

    format: str
    kind: Kind
    meaning: str
