"""`amp_lab.Trainer` on the same task."""

from __future__ import annotations

from torch.utils.data import DataLoader

from amp_lab.train.trainer import Trainer
from benchmarks.training.task import CLIP_NORM, Task, loss_of
from benchmarks.training.turns import Batch


def ours(task: Task, loader: DataLoader[Batch]) -> None:
    """Train for as long as there are batches."""
    model = task.model()
    optimizer = task.optimizer(model)
    trainer = Trainer(
        model,
        loss_of,
        optimizer,
        scheduler=task.scheduler(optimizer),
        scheduler_every="step",
        precision=task.precision,
        device=task.device,
        clip_norm=CLIP_NORM,
        scaler=task.scaler(),
    )
    try:
        trainer.fit(loader, epochs=1)
    finally:
        task.losses.extend(trainer.history.losses)
