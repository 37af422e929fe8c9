"""Numbers that are on a device, one for each step: read many steps later, so that nothing waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

# So many are sent to the host together.
_TOGETHER: Final = 256


class Readings:
    """A queue of numbers. `tell(step, number)` gets them, in order.

    Numbers of a GPU are copied to the host in parcels, without waiting: a parcel is opened when the next one is sent,
    if it has arrived by then.
    """

    def __init__(self, tell: Callable[[int, float], None], together: int = _TOGETHER) -> None:
        self._tell, self._together = tell, together
        self._waiting: list[tuple[int, torch.Tensor]] = []
        self._sent: list[tuple[list[int], torch.Tensor, Any]] = []

    def add(self, step: int, value: float | torch.Tensor) -> None:
        if not isinstance(value, torch.Tensor):
            if self._waiting or self._sent:  # its turn comes after theirs
                value = torch.tensor(value, dtype=torch.float32)
            else:
                self._tell(step, value)
                return
        self._waiting.append((step, value))
        if len(self._waiting) >= self._together:
            self._open(wait=False)
            self._send()

    def _send(self) -> None:
        steps = [step for step, _ in self._waiting]
        device = next(
            (each.device for _, each in self._waiting if each.device.type != "cpu"), torch.device("cpu")
        )
        every = [each.to(device, torch.float32, non_blocking=True).reshape(()) for _, each in self._waiting]
        parcel, arrived = torch.stack(every), None
        if device.type == "cuda":
            host = torch.empty(len(every), dtype=torch.float32, pin_memory=True)
            host.copy_(parcel, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(torch.cuda.current_stream(device))
            parcel = host
        self._sent.append((steps, parcel, arrived))
        self._waiting.clear()

    def _open(self, *, wait: bool) -> None:
        while self._sent:
            steps, parcel, arrived = self._sent[0]
            if arrived is not None:
                if not (wait or arrived.query()):
                    return
                arrived.synchronize()
            for step, value in zip(steps, parcel.tolist(), strict=True):
                self._tell(step, value)
            del self._sent[0]

    def read(self) -> None:
        """Read all; the host waits for the devices."""
        if self._waiting:
            self._send()
        self._open(wait=True)
