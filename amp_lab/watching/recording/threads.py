"""What is open in one thread: regions, calls, forward passes."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Region:
    """An autocast region that is open. `context` is the `id` of the `torch.autocast` object."""

    context: int
    number: int


@dataclass(slots=True)
class Passing:
    """A forward pass that runs. `inside` is the dtype of the region that was entered last in it."""

    model: int
    handling: BaseException | None  # what the code around was handling when it began
    inside: torch.dtype | None = None


@dataclass(slots=True)
class Asked:
    """`scaler.step(optimizer)` runs."""

    optimizer: int
    ran: bool = False  # optimizer.step was called
    found_inf: object = None  # what the scaler gave to a fused optimizer


class Here(threading.local):
    """Each thread has its own."""

    def __init__(self) -> None:
        self.called = False  # a watched model was called, and no gradients were settled since
        self.regions: list[Region] = []
        self.inside: set[str] = set()  # the kinds of calls that run and are noted
        self.passing: list[Passing] = []
        self.asked: Asked | None = None
        self.stepping: list[object] = []  # optimizers' steps that run, and what was known when they began
        self.clipped: (
            tuple[torch.Tensor, ...] | None
        ) = ()  # gradients that are being clipped; None: they are wanted
