"""The epochs of a Trainer: windows, steps, the dev set, checkpoints; and that all is put back at the end."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from amp_lab.train.checkpoint import load_checkpoint
from amp_lab.train.precision import fp32_products
from amp_lab.train.saving.positions import length
from amp_lab.train.training.alike import check_weights
from amp_lab.train.training.breaking_off import end_turn, explained
from amp_lab.train.training.calls import warn_of_same_masks
from amp_lab.train.training.evaluation import evaluate, modes_kept
from amp_lab.train.training.history import EpochRecord, History, StepRecord
from amp_lab.train.training.loop import train_step
from amp_lab.train.training.nonfinite import worth_saving
from amp_lab.train.training.progress import Progress

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer


class Fit:
    """One call of `fit`."""

    def __init__(
        self, trainer: Trainer, train_loader: Iterable[Any], dev_loader: Any, epochs: int, resume: Any
    ) -> None:
        self._trainer, self._dev_loader = trainer, dev_loader
        self._train_loader, self._epochs, self._resume = train_loader, epochs, resume
        self._progress = Progress(False, epochs)
        self._untaken = 0  # batches of the window that is being computed

    def run(self) -> History:
        """Do the epochs that are left."""
        trainer = self._trainer
        trainer.stopped = None
        try:
            self._start()
            return self._run()
        finally:
            trainer.asked_to_stop = None

    def _run(self) -> History:
        trainer = self._trainer
        if trainer.epoch >= self._epochs:
            if trainer.ranks.first:
                warnings.warn(
                    f"nothing to train: {trainer.epoch} epochs are done, and fit(epochs={self._epochs}) counts those "
                    "done before; ask for more to go on",
                    stacklevel=4,
                )
            return trainer.history
        trainer.together.begin()
        if trainer.ranks.size > 1:
            warn_of_same_masks(trainer)
        trainer.ranks.each(self._enter)
        try:
            self._progress = Progress(trainer.progress and trainer.ranks.first, self._epochs)
            with explained(trainer), training(trainer), self._progress:
                while trainer.epoch < self._epochs and not trainer.together.stops_between_epochs(trainer):
                    self._epoch()
                if trainer.epoch < self._epochs or trainer.together.stopping:
                    trainer.stopped = trainer.asked_to_stop  # else the request came when all was done
        finally:
            trainer.place.leave(self._untaken)
        return trainer.history

    def _start(self) -> None:
        """Go to the checkpoint to resume from, if any; seed a run that has not begun."""
        trainer, checkpoints = self._trainer, self._trainer.checkpoints
        state = trainer.ranks.first_does(self._loaded)
        if state is not None:
            trainer.ranks.each(lambda: trainer.load_state_dict(state))
        if checkpoints is not None:
            trainer.ranks.first_does(lambda: checkpoints.begin(trainer.step))
        if trainer.seed is not None and trainer.step == 0:
            # The same dropout on all ranks would be a smaller batch in disguise.
            seed = trainer.seed + trainer.ranks.rank
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)

    def _enter(self) -> None:
        trainer = self._trainer
        self._batches = trainer.place.enter(trainer, self._train_loader, self._dev_loader)

    def _loaded(self) -> Any:
        """Return the state to go on from; None if there is none."""
        checkpoints, resume = self._trainer.checkpoints, self._resume
        if resume is True:
            return checkpoints.load() if checkpoints is not None and checkpoints.paths else None
        if resume is False:
            return None
        return load_checkpoint(resume) if checkpoints is None else checkpoints.load(resume)

    def _epoch(self) -> None:
        trainer, start = self._trainer, time.perf_counter()
        self._progress.epoch(trainer.epoch, self._batches.taken, length(self._batches))
        for window in trainer.together.windows(self._batches, trainer.accumulate):
            self.step(window)
            self._save_if_due()
            if trainer.together.stops(trainer):
                return self._save()
        self._epoch_ended(start)

    def step(self, window: Sequence[Any]) -> StepRecord:
        """Make one step, and note it."""
        trainer = self._trainer
        self._untaken = len(window)
        try:
            record = train_step(trainer, window)
        except BaseException:
            end_turn(trainer)
            raise
        self._untaken = 0
        trainer.history.steps.append(record)
        trainer.step += 1
        self._progress.step(record, len(window))
        if trainer.callback is not None:
            trainer.callback(record)
        return record

    def _save_if_due(self) -> None:
        checkpoints = self._trainer.checkpoints
        if checkpoints is not None and checkpoints.due(self._trainer.step):
            self._save()

    def _save(self, values: dict[str, float] | None = None) -> None:
        trainer = self._trainer
        if trainer.checkpoints is not None and worth_saving(trainer):
            state, save = trainer.state_dict(), trainer.checkpoints.save
            trainer.ranks.first_does(lambda: str(save(state, step=trainer.step, values=values)))

    def _epoch_ended(self, start: float) -> None:
        trainer = self._trainer
        train_loss = self._train_loss()
        check_weights(trainer)
        values: dict[str, float] = {}
        if self._dev_loader is not None:
            values = evaluate(trainer, self._dev_loader, "dev_loader")
        metrics = {name: value for name, value in values.items() if name != "loss"}
        dev_loss = values.get("loss")
        record = EpochRecord(trainer.epoch, train_loss, dev_loss, metrics, time.perf_counter() - start)
        trainer.schedule.epoch_ended(dev_loss)
        trainer.history.epochs.append(record)
        self._batches.end_epoch()
        self._progress.epoch_ended(record)
        self._save(values or None)
        if trainer.callback is not None:
            trainer.callback(record)

    def _train_loss(self) -> float:
        trainer = self._trainer
        steps = list(
            itertools.takewhile(lambda each: each.epoch == trainer.epoch, reversed(trainer.history.steps))
        )
        if not steps:
            raise ValueError(
                "train_loader gave no batch: its data set is empty, or it was read before (a generator?)"
            )
        finite = [each for each in steps if math.isfinite(each.loss)]
        samples = sum(each.samples for each in finite)
        return math.fsum(each.loss * each.samples for each in finite) / samples if samples else math.nan


@contextlib.contextmanager
def training(trainer: Trainer) -> Iterator[None]:
    """Train in here: training mode, gradients, FP32 products as the precision says. All is put back."""
    with modes_kept(trainer.modules()) as modules, torch.enable_grad(), fp32_products(trainer.precision):
        for module in modules:
            if not module.training:  # if it is, its parts stay as they are: somebody may have frozen some
                module.train()
        yield
