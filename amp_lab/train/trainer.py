"""Train a model with mixed precision: loop, loss scale, accumulation, clipping, schedule, dev set, checkpoints.

    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()))
    history = trainer.fit(train_loader, dev_loader, epochs=5)
    history.plot()

One way through the files: `loop` is the step, and worth reading first; `batches` is what happens to a batch,
`precision` which format, `fitting` the epochs; `evaluation`, `schedules`, `history` and `progress` are what their names
say. `checks`, `calls` and `alike` say what is refused, `nonfinite` and `breaking_off` what happens when a step fails.
`resuming`, `checkpoint` and `positions` save and go on. `together` is how several processes keep in step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from amp_lab.train.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from amp_lab.train.distributed.several import ranks_of
from amp_lab.train.precision import DTYPES, fp32_products, resolved
from amp_lab.train.saving.positions import length
from amp_lab.train.training import alike, calls, checks
from amp_lab.train.training.breaking_off import explained
from amp_lab.train.training.devices import device_for, move
from amp_lab.train.training.errors import NonFiniteLoss, OutOfMemory
from amp_lab.train.training.evaluation import evaluate
from amp_lab.train.training.fitting import Fit, training
from amp_lab.train.training.history import EpochRecord, History, StepRecord
from amp_lab.train.training.resuming import Place, from_state, to_state
from amp_lab.train.training.schedules import Schedule
from amp_lab.train.training.together import Together

__all__ = ["EpochRecord", "History", "NonFiniteLoss", "OutOfMemory", "StepRecord", "Trainer"]


class Trainer:
    """Trains a model. Everything after `optimizer` has a default that is right for a start.

    A batch is a tuple or list whose last part is the target, `loss_fn(model(*batch[:-1]), batch[-1])`, or a mapping,
    `loss_fn(model(**batch), batch)`. The first dimension of its tensors counts samples.

    Several processes (ranks) train one model if it is wrapped, `Trainer(DistributedDataParallel(model), ...)`, and each
    gets its part of the data: for training, a DataLoader with a `DistributedSampler`, whose `set_epoch` is called; for
    the dev set, `DevShard` of `amp_lab.train.distributed.shards`. Every rank makes the same calls: `fit`, `evaluate`,
    `save`, `state_dict`, `load`; what only one of them calls, it waits in. Loss, metrics and history are those of all
    samples of all ranks, and the same on each. Rank 0 writes the checkpoints; all go on from them.

    Args:
        model: with FP32 weights. It is trained in training mode; if it comes so, parts that you have put into
            evaluation mode (a frozen BatchNorm) stay there.
        loss_fn: the mean loss over the samples of a batch. A module is moved to the device. None: the `.loss` of the
            model's result.
        optimizer: made of `model.parameters()`.
        scheduler: of `torch.optim.lr_scheduler`. It does not move for a step that was skipped.
        scheduler_every: "step": it moves after each optimizer step (the default); "epoch". Where the numbers of a
            scheduler look like epochs, an error asks which. `ReduceLROnPlateau` moves each epoch, by the dev loss.
        precision: "fp32", really: TF32 is off meanwhile, and afterwards as it was; "tf32"; "fp16": autocast and a loss
            scale; "bf16": autocast; "auto": the fast one on this device (`amp_lab.train.precision.choose`).
        device: None: the model's own; but a model that is on the CPU is moved to CUDA, if there is one.
        accumulate: micro-batches to a step. Each counts by its number of samples, in a last window of fewer, too.
        clip_norm: the largest norm of all gradients together; None: no clipping; `math.inf`: measured only.
        metrics: functions of outputs in FP32 and target, each the mean over the samples of a batch, by name.
        on_nonfinite: what to do if the loss is NaN or infinite (or the gradient norm, if it is measured and no loss
            scale can be the reason): "raise" NonFiniteLoss with a diagnosis, "skip" the batch, "stop".
            An overflow that the scaler cures by itself is none.
        scaler: a `torch.amp.GradScaler` of your own, for "fp16".
        checkpoints: a folder, to save in at each epoch's end; or a `Checkpoints(folder, ...)` of
            `amp_lab.train.checkpoint`, which says how often, and what to keep.
        seed: of PyTorch's, NumPy's and Python's random numbers, set when the first step is about to be made: `seed +
            rank`, so that each rank has dropout masks of its own.
        callback: called with each StepRecord and each EpochRecord, on every rank; `trainer.stop()` in it ends the run.
        progress: whether to show a bar, on rank 0.

    Attributes:
        precision, device: what is used in the end.
        ranks: `rank`, `size`, and whether this is the `first`.
        scaler: always a GradScaler; enabled only for "fp16".
        history: the records so far. `epoch` and `step` count what is done; skipped steps count.
        stopped: why the last `fit` ended before its epochs were done; None if it did not.

    Raises:
        TypeError, ValueError: for what cannot be trained, with what to do instead.
        RankFailed: anywhere, if another rank has failed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any] | None,
        optimizer: Optimizer,
        *,
        scheduler: Any = None,
        scheduler_every: str | None = None,
        precision: str = "auto",
        device: str | torch.device | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        on_nonfinite: str = "raise",
        scaler: torch.amp.GradScaler | None = None,
        checkpoints: Checkpoints | str | PathLike[str] | None = None,
        seed: int | None = None,
        callback: Callable[[StepRecord | EpochRecord], object] | None = None,
        progress: bool = True,
    ) -> None:
        checks.check_model(model, loss_fn)
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        checks.check_optimizer(optimizer, self._named_modules())
        checks.check_weights(self._named_modules())
        checks.check_scheduler(scheduler, scheduler_every, optimizer)
        checks.check_numbers(accumulate, clip_norm, seed)
        checks.check_clipping(clip_norm, self._named_modules())
        checks.check_others(metrics, on_nonfinite, checkpoints, callback)
        self.device = device_for(model, device)
        self.ranks = ranks_of(model, self.device)
        self.together = Together(self.ranks)
        checks.check_ranks(self.ranks, loss_fn, accumulate)
        self.precision = resolved(precision, self.device)
        checks.check_scaler(scaler, self.precision)
        checks.check_skipping(optimizer, self.precision)

        self.scheduler, self.schedule = scheduler, Schedule(scheduler, scheduler_every)
        self.accumulate, self.clip_norm, self.on_nonfinite = int(accumulate), clip_norm, on_nonfinite
        self.metrics = dict(metrics or {})
        self.checkpoints = (
            Checkpoints(checkpoints) if isinstance(checkpoints, str | PathLike) else checkpoints
        )
        self.seed, self.callback, self.progress = seed, callback, progress
        self.scaler = scaler or torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        dtype = DTYPES.get(self.precision)
        # Made once: a region can be entered again and again, and to make one costs more than to enter it.
        self.autocast: contextlib.AbstractContextManager[Any] = (
            torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()
        )
        move(self.modules(), optimizer, self.device)

        self.history, self.step = History(), 0
        self.stopped: str | None = None
        self.asked_to_stop: str | None = None
        self.place = Place()

    def fit(
        self,
        train_loader: Iterable[Any],
        dev_loader: Iterable[Any] | None = None,
        *,
        epochs: int = 1,
        resume: bool | str | PathLike[str] = False,
    ) -> History:
        """Train until `epochs` epochs are done in all, those of earlier calls and of a resumed run included.

        Called again, it goes on where it ended, in the middle of an epoch, too. What it changes for PyTorch as a whole
        (TF32, grad mode, training mode of the modules) is put back; random numbers have gone on.

        Args:
            train_loader: gives batches when iterated, once for each epoch: a DataLoader, or a list of batches.
            dev_loader: the same for the dev set, read after each epoch, without training; None: there is none.
            epochs: in all, so that the same script starts a run and goes on with it.
            resume: True: go on from the newest checkpoint, if there is one yet; a path: from this one.

        Returns:
            the history of all steps and epochs so far.

        Raises:
            TypeError, ValueError, RuntimeError: for what cannot be trained with, and says so.
            NonFiniteLoss: if the loss is not finite and `on_nonfinite` does not say otherwise.
            OutOfMemory: with what to try.
            CheckpointError: for a checkpoint that cannot be read, and a folder with those of another run.
            RanksDiffer: where ranks are not asked for the same, one is out of data before the others, or their weights
                have drifted apart (looked at before each checkpoint and at each epoch's end).
        """
        self.ranks.each(lambda: self._check_fit(train_loader, dev_loader, epochs, resume))
        alike.check_alike(self, train_loader, dev_loader, epochs, resume)
        try:
            return Fit(self, train_loader, dev_loader, epochs, resume).run()
        finally:
            if self.checkpoints is not None:
                self.checkpoints.end()

    def _check_fit(self, train_loader: Any, dev_loader: Any, epochs: int, resume: Any) -> None:
        calls.check_idle(self.place.running)
        calls.check_fit(epochs, resume, self.checkpoints)
        calls.check_surroundings(self.device)
        calls.check_loader("train_loader", train_loader, epochs)
        if dev_loader is not None:
            calls.check_loader("dev_loader", dev_loader, epochs, may_be_empty=self.ranks.size > 1)
        alike.check_dealing(self.ranks, train_loader)
        if self.checkpoints is not None:
            self.checkpoints.check_values(() if dev_loader is None else ("loss", *self.metrics))
        steps = length(train_loader)
        steps = None if steps is None else -(-steps // self.accumulate)
        self.schedule.check(epochs, steps, dev_loader is not None)

    def train_step(self, window: Sequence[Any]) -> StepRecord:
        """Make one step of a window, the list of its micro-batches, outside `fit`; it counts in the history.

        Raises:
            TypeError, ValueError, NonFiniteLoss, OutOfMemory: as `fit`.
        """
        calls.check_window(window)
        calls.check_surroundings(self.device)
        with explained(self), training(self):
            return Fit(self, [], None, self.epoch + 1, False).step(window)

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Return "loss" and each metric, means over the samples of a set: in evaluation mode, and without a graph.

        Raises:
            TypeError, ValueError: for a loader without a sample, and what is no loss and no metric.
        """
        calls.check_loader("loader", loader, 1, may_be_empty=self.ranks.size > 1)
        calls.check_no_region(self.device)
        with fp32_products(self.precision):
            return evaluate(self, loader)

    def stop(self, because: str = "trainer.stop() was called") -> None:
        """End `fit` after the step that is being made; called by a callback, from another thread or a signal handler.

        Of several ranks, one that calls this is enough: all end together, after the next step at the latest. Called
        before `fit`, or while that loads a checkpoint, it lets no step happen.
        """
        self.asked_to_stop = (
            because  # `fit` alone writes `stopped`: so no request that comes in between is lost
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to go on exactly: weights, optimizer, loss scale, schedule, place, random states.

        Tensors are the run's own, not copies: `save` writes them at once.
        """
        return to_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict()` was taken; the next `fit` goes on there.

        Raises:
            CheckpointError, ValueError: for the state of another model, or of a Trainer made otherwise.
        """
        calls.check_idle(self.place.running)
        from_state(self, state)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a checkpoint, whole or not at all. CheckpointError if that fails."""
        state = self.state_dict()
        self.ranks.first_does(lambda: str(save_checkpoint(path, state)))

    def load(self, path: str | PathLike[str]) -> None:
        """Go to where a checkpoint was saved; the next `fit` goes on there. CheckpointError if it cannot be read."""
        self.load_state_dict(self.ranks.first_does(lambda: load_checkpoint(path)))

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return len(self.history.epochs)

    @property
    def parameters(self) -> list[torch.Tensor]:
        """What the optimizer trains."""
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def modules(self) -> list[nn.Module]:
        """The model, and the loss function if it is a module."""
        return list(self._named_modules().values())

    def _named_modules(self) -> dict[str, nn.Module]:
        loss_fn = {"loss_fn": self.loss_fn} if isinstance(self.loss_fn, nn.Module) else {}
        return {"model": self.model, **loss_fn}
