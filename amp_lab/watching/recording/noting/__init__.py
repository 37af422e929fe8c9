"""Which calls are noted, one module for each part of a training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder


def all_of() -> tuple[Callable[[Recorder], None], ...]:
    """Return the functions that put a recorder on, in order."""
    from amp_lab.watching.recording.noting import (
        averages,
        backward,
        checkpoints,
        clipping,
        copies,
        forward,
        optimizers,
        regions,
        scalers,
        schedules,
        zeroing,
    )

    every = (
        regions,
        forward,
        copies,
        scalers,
        backward,
        clipping,
        optimizers,
        zeroing,
        schedules,
        averages,
        checkpoints,
    )
    return tuple(module.install for module in every)
