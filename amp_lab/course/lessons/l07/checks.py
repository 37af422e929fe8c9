"""What the exercises of lesson 07 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l07 import (
    accumulating,
    clipping,
    finding,
    penalising,
    reading,
    resuming,
    scheduling,
    sharing,
    stepping,
)

__all__ = [
    "accumulating",
    "clipping",
    "finding",
    "penalising",
    "reading",
    "resuming",
    "scheduling",
    "sharing",
    "stepping",
]
