"""When a learning-rate scheduler moves: with each step that really happened, or at the end of each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.optim.lr_scheduler import ExponentialLR, PolynomialLR, ReduceLROnPlateau, StepLR

# What schedulers call the number of moves after which they are through: in steps, more than an epoch …
_ENDS: Final = ("T_max", "total_steps", "milestones")
# … except for what they do again and again, or at the start: in the first epoch, that may be meant.
_WITHIN: Final = ("step_size", "T_0", "total_iters")
_NOTHING: Final = 1e-8  # of the learning rate: a run that ends with so little has not counted steps


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
        if self.scheduler is None:
            return
        name = type(self.scheduler).__name__
        if self.plateau and not has_dev:
            raise ValueError(f"{name} looks at the dev loss: give fit a dev_loader")
        many_steps = steps_per_epoch is None or steps_per_epoch > 1
        if not self.chosen and not self.plateau and many_steps:
            _ask_if_epochs(self.scheduler, epochs, steps_per_epoch or 0)
        units = epochs if self.every == "epoch" else epochs * (steps_per_epoch or 0)
        total = getattr(self.scheduler, "total_steps", None)
        if total is not None and total < units:
            raise ValueError(
                f"{name} has total_steps={total:,}, and this run has {units:,} {self.every}s: PyTorch raises when it "
                f"moves on after its end; make it with total_steps={units}"
            )


def _ask_if_epochs(scheduler: Any, epochs: int, steps: int) -> None:
    """ValueError if a schedule is over far too early when it moves with each of so many steps per epoch."""
    parts = _members(scheduler)
    # Of several, the longest counts: a short warm-up before a long schedule is what one does.
    moves, field = max((found for each in parts for found in _horizons(each)), default=(0, ""))
    left = min(_left(each, epochs * steps) for each in parts)
    if field and (moves <= epochs or (field in _ENDS and epochs > 1 and moves < steps)):
        number = f"{field}={moves:,}"
    elif left < _NOTHING:
        number = f"{left:.1g} of the learning rate left after the {epochs * steps:,} steps of this run"
    else:
        return
    raise ValueError(
        f'{type(scheduler).__name__} has {number}: are these epochs? Say Trainer(..., scheduler_every="epoch"). Or '
        '"step", if it is to move with each step'
    )


def _members(scheduler: Any) -> list[Any]:
    """Return a scheduler, or those that SequentialLR and ChainedScheduler are made of."""
    inner = getattr(scheduler, "_schedulers", None)
    return [scheduler] if inner is None else [part for each in inner for part in _members(each)]


def _horizons(scheduler: Any) -> list[tuple[int, str]]:
    known = {field: getattr(scheduler, field, None) for field in (*_ENDS, *_WITHIN)}
    return [
        (int(value if isinstance(value, int | float) else max(value)), field)
        for field, value in known.items()
        if value
    ]


def _left(scheduler: Any, moves: int) -> float:
    """Return the part of the learning rate that is left after so many moves, if it is one that shrinks; else 1."""
    if isinstance(scheduler, ExponentialLR):
        return float(scheduler.gamma**moves)
    if isinstance(scheduler, StepLR):
        return float(scheduler.gamma ** (moves // scheduler.step_size))
    if isinstance(scheduler, PolynomialLR):  # it ends at 0
        return 0.0 if scheduler.total_iters < moves / 2 else 1.0
    return 1.0
