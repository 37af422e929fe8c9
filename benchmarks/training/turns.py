"""Let whole training runs take turns, a few steps at a time.

`Trainer.fit` returns when all is over, so it cannot be timed step by step beside another one. But every loop asks its
loader for the next batch. So each loop runs in a thread of its own, and its data set is a gate: it hands out as many
batches as it was told to, and when the next one is asked for, the steps are done. Then that thread sleeps in the gate,
and another loop has its turn. One thread computes at any time; the others wait for a lock and take no time.

A loop that asks for its batches in advance (accelerate asks for one) is asleep in the gate with one batch in hand. It
is timed from one request to another all the same: as many requests, as many steps.

A turn contains two switches of threads: some ten microseconds, the same for every loop, also for the one by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch
from torch.utils.data import DataLoader, Dataset

Batch = tuple[torch.Tensor, torch.Tensor]
LENGTH = 1_000_000  # batches that a loader says it has: more than anybody takes


class Enough(Exception):
    """Raised in the data set: there are no more turns."""


class Gate(Dataset[Batch]):
    """Hands out batches when it is told to."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.left = 0
        self.orders: SimpleQueue[int] = SimpleQueue()  # how many batches to hand out; 0: no more
        self.reports: SimpleQueue[None] = SimpleQueue()  # they are used up, or the loop has ended

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Batch:
        if self.left == 0:
            self.reports.put(None)
            self.left = self.orders.get()
            if self.left == 0:
                raise Enough
        self.left -= 1
        return self.batches[index % len(self.batches)]


class Turns:
    """One training run, in a thread of its own, which goes on only in its turns.

    Args:
        run: is called with a loader and trains on what it yields.
        batches: are yielded in this order, again and again.
    """

    def __init__(self, run: Callable[[DataLoader[Batch]], None], batches: list[Batch]) -> None:
        self._gate = Gate(batches)
        self._run = run
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self._wait()

    def take(self, steps: int) -> None:
        """Train for so many steps.

        Raises:
            RuntimeError: if the run has ended, with its error as the cause.
        """
        self._gate.orders.put(steps)
        self._wait()

    def close(self) -> None:
        """End the run at the batch that it waits for."""
        self._gate.orders.put(0)
        self._thread.join()

    def _wait(self) -> None:
        self._gate.reports.get()
        if self._error is not None:
            raise RuntimeError(f"the run ended: {self._error!r}") from self._error

    def _work(self) -> None:
        try:
            self._run(DataLoader(self._gate, batch_size=None))
            self._error = EOFError("its loader had more batches")
        except Enough:
            self._error = EOFError("it was closed")
        except BaseException as error:
            self._error = error
        self._gate.reports.put(None)
