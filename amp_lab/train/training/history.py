"""What a run went through: a record for each step and for each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SKIPPED: Final = ("", "overflow", "loss")  # as numbers in a saved history


class StepRecord(NamedTuple):
    """One window of micro-batches, and the step that followed, or did not.

    Attributes:
        epoch, step: counted from 0; steps count on over epochs, and skipped ones count.
        loss: the mean over all samples of the window, unscaled; NaN or inf where `skipped` is "loss".
        lr: the learning rate of the first group, with which the step was done.
        scale: the loss scale with which it was done; 1.0 without a scaler.
        grad_norm: of the unscaled gradients, before clipping; None where Trainer does not clip.
        skipped: "" for a step that happened, "overflow" where the scaler skipped it, "loss" where the loss was not
            finite and Trainer went on.
        samples: how many the window had.
    """

    epoch: int
    step: int
    loss: float
    lr: float
    scale: float
    grad_norm: float | None
    skipped: str
    samples: int


class EpochRecord(NamedTuple):
    """One epoch: the mean training loss over its samples, the loss and metrics of the dev set, and how long it took.

    `train_loss` is taken while the weights change, with dropout; `dev_loss` (None without a dev set) at the end of the
    epoch, without. Losses that were not finite are left out of `train_loss`; it is NaN if there is no other.
    """

    epoch: int
    train_loss: float
    dev_loss: float | None
    metrics: dict[str, float]
    seconds: float


class History:
    """The records of a run, `steps` and `epochs`, oldest first. Two histories are equal if all but the seconds are."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []

    @property
    def losses(self) -> list[float]:
        """The training loss of each step."""
        return [record.loss for record in self.steps]

    @property
    def scales(self) -> list[float]:
        """The loss scale of each step."""
        return [record.scale for record in self.steps]

    @property
    def skipped(self) -> list[bool]:
        """Whether each step was skipped."""
        return [bool(record.skipped) for record in self.steps]

    @property
    def lrs(self) -> list[float]:
        """The learning rate of each step."""
        return [record.lr for record in self.steps]

    @property
    def grad_norms(self) -> list[float | None]:
        """The norm of the unscaled gradients of each step, before clipping."""
        return [record.grad_norm for record in self.steps]

    def plot(self, title: str | None = None) -> Figure:
        """Draw the loss of the training and dev set over the steps and, with a loss scale, the scale below."""
        from amp_lab.view.training_history import training_history  # Matplotlib takes a second to import

        return training_history(self, title)

    def state_dict(self) -> dict[str, Any]:
        """Return the records as tensors, one for each field: quick to save, and safe to load (`weights_only=True`)."""
        return {"steps": _to_columns(self.steps), "epochs": [each._asdict() for each in self.epochs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the records of `state_dict()` in place of these.

        Raises:
            ValueError: if they are not those of a history.
        """
        try:
            steps = _from_columns(state["steps"])
            epochs = [EpochRecord(**each) for each in state["epochs"]]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is not the state of a Trainer's history ({error!r})") from error
        self.steps, self.epochs = steps, epochs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return _comparable(self) == _comparable(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        if not self.steps:
            return "History: no step yet"
        skipped = f", {sum(self.skipped):,} of them skipped" if any(self.skipped) else ""
        return f"History: {len(self.steps):,} steps{skipped}; {self._end()}"

    def _end(self) -> str:
        if not self.epochs:
            return f"training loss {self.steps[-1].loss:.4g}"
        last = self.epochs[-1]
        values = {"training loss": last.train_loss, "dev loss": last.dev_loss, **last.metrics}
        said = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
        return f"after {len(self.epochs):,} epochs: {said}"


def _to_columns(steps: Sequence[StepRecord]) -> dict[str, torch.Tensor]:
    """Return a tensor for each field. Python's floats are FP64, so each keeps all its bits."""
    columns = {name: _whole([getattr(each, name) for each in steps]) for name in ("epoch", "step", "samples")}
    columns |= {name: _real([getattr(each, name) for each in steps]) for name in ("loss", "lr", "scale")}
    columns["measured"] = _whole([each.grad_norm is not None for each in steps])
    columns["grad_norm"] = _real([0.0 if each.grad_norm is None else each.grad_norm for each in steps])
    columns["skipped"] = _whole([_SKIPPED.index(each.skipped) for each in steps])
    return columns


def _from_columns(columns: Mapping[str, torch.Tensor]) -> list[StepRecord]:
    lists = {name: columns[name].tolist() for name in (*StepRecord._fields, "measured")}
    pairs = zip(lists["grad_norm"], lists.pop("measured"), strict=True)
    lists["grad_norm"] = [norm if measured else None for norm, measured in pairs]
    lists["skipped"] = [_SKIPPED[code] for code in lists["skipped"]]
    return [StepRecord(*row) for row in zip(*(lists[name] for name in StepRecord._fields), strict=True)]


def _whole(values: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def _real(values: Sequence[float]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64))  # NumPy reads lists faster


def _comparable(history: History) -> str:
    """Texts, as NaN is not equal to NaN; `repr` of a float gives all its bits."""
    return repr((history.steps, [each._replace(seconds=0.0) for each in history.epochs]))
