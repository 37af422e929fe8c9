"""A progress bar for a run, drawn at most ten times a second: a step of a small model takes less than the drawing."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Final

from amp_lab.train.training.history import EpochRecord, StepRecord

_SECONDS: Final = 0.1


class Progress:
    """One line for each epoch, in a terminal or a notebook; nothing at all if not `shown`."""

    def __init__(self, shown: bool, epochs: int) -> None:
        self._shown, self._epochs = shown, epochs
        self._bar: Any = None
        self._waiting, self._next = 0, 0.0

    def epoch(self, epoch: int, done: int, total: int | None) -> None:
        """Begin an epoch, of which some batches may be done already; `total`: its batches, if that is known."""
        if not self._shown:
            return
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, initial=done, desc=f"epoch {epoch + 1}/{self._epochs}", unit="batch")
        self._waiting, self._next = 0, 0.0

    def step(self, record: StepRecord, batches: int) -> None:
        if self._bar is None:
            return
        self._waiting += batches
        if (now := time.perf_counter()) >= self._next:
            self._next = now + _SECONDS
            self._draw(_of_step(record))

    def epoch_ended(self, record: EpochRecord) -> None:
        if self._bar is not None:
            self._draw(_of_epoch(record))
            self.close()

    def _draw(self, text: str) -> None:
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(self._waiting)
        self._waiting = 0

    def close(self) -> None:
        if self._bar is not None:
            self._bar.update(self._waiting)
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _of_step(record: StepRecord) -> str:
    scale = f", scale {record.scale:g}" if record.scale != 1 else ""
    return f"loss {record.loss:.4g}{scale}"


def _of_epoch(record: EpochRecord) -> str:
    values = {"loss": record.train_loss, "dev loss": record.dev_loss, **record.metrics}
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
