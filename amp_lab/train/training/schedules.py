"""When a learning-rate scheduler moves: with each step that really happened, or at the end of each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.optim.lr_scheduler import ReduceLROnPlateau

# What schedulers call the number of moves after which they are through, or change for the first time.
_HORIZONS: Final = ("T_max", "T_0", "total_steps", "total_iters", "step_size", "milestones", "_milestones")


class Schedule:
    """A scheduler, or none, and the rule by which it moves. It never moves for a step that a scaler has skipped."""

    def __init__(self, scheduler: Any, every: str | None) -> None:
        self.scheduler = scheduler
        self.plateau = isinstance(scheduler, ReduceLROnPlateau)
        self.chosen = every is not None
        self.every = every or ("epoch" if self.plateau else "step")
        self._stepped = False  # in this epoch
        self._each_step = scheduler is not None and self.every == "step"

    def stepped(self) -> None:
        """An optimizer step has happened."""
        self._stepped = True
        if self._each_step:
            self.scheduler.step()

    def epoch_ended(self, dev_loss: float | None) -> None:
        """An epoch is over. One without a single step does not count."""
        if self.scheduler is not None and self.every == "epoch" and self._stepped:
            self.scheduler.step(*[dev_loss] if self.plateau else [])
        self._stepped = False

    def state_dict(self) -> dict[str, Any]:
        held = None if self.scheduler is None else self.scheduler.state_dict()
        return {"scheduler": held, "stepped": self._stepped}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """ValueError if a state is that of a run with a scheduler, and this one has none, or the other way."""
        if (state["scheduler"] is None) != (self.scheduler is None):
            has, lacks = (
                ("this Trainer", "the checkpoint") if self.scheduler else ("the checkpoint", "this Trainer")
            )
            raise ValueError(
                f"{has} has a scheduler and {lacks} has none: make the Trainer as it was when it saved"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._stepped = state["stepped"]

    def check(self, epochs: int, steps_per_epoch: int | None, has_dev: bool) -> None:
        """Refuse a schedule that cannot be meant for such a run.

        Raises:
            ValueError: for ReduceLROnPlateau without a dev loss; if it is not said whether it counts steps or epochs,
                and its number is small enough to be one of epochs; if OneCycleLR ends before the run.
        """
        name = type(self.scheduler).__name__
        if self.plateau and not has_dev:
            raise ValueError(f"{name} looks at the dev loss: give fit a dev_loader")
        horizon = _horizon(self.scheduler)
        if horizon is None or (steps_per_epoch or 2) < 2:
            return
        field, moves = horizon
        if not self.chosen and not self.plateau and moves < max(epochs + 1, steps_per_epoch or 0):
            raise ValueError(
                f'{name} has {field}={moves:,}: are these epochs? Say Trainer(..., scheduler_every="epoch"). Or '
                '"step", if it is to move with each step, and so within the first epoch'
            )
        units = epochs if self.every == "epoch" else steps_per_epoch and epochs * steps_per_epoch
        if field == "total_steps" and units and moves < units:
            raise ValueError(
                f"{name} has total_steps={moves:,}, and this run has {units:,} {self.every}s: PyTorch raises when it "
                f"moves on after its end; make it with total_steps={units}"
            )


def _horizon(scheduler: Any) -> tuple[str, int] | None:
    for field in _HORIZONS:
        value = getattr(scheduler, field, None)
        if value:
            return field, max(value) if not isinstance(value, int | float) else int(value)
    return None
