"""What is watched: models, optimizers, scalers, schedulers, each with its number and the facts about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from amp_lab.watching.recording import scalers, setup
from amp_lab.watching.recording.events import Gradients
from amp_lab.watching.recording.known import MOST, Known, Owners, parameters_of
from amp_lab.watching.recording.numbers import rates
from amp_lab.watching.recording.places import Places
from amp_lab.watching.recording.run import ModelFacts, OptimizerFacts, ScalerFacts
from amp_lab.watching.recording.states import Factor, States
from amp_lab.watching.recording.steps import Steps


class Watched:
    """The objects of one watch: those handed over, and those met on the way."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any],
        given: Sequence[Any],
        schedulers: Sequence[Any],
    ) -> None:
        self.models = list(models)
        self.optimizers: list[Any] = []
        self.given_scalers = list(given)  # kept alive
        self.given_schedulers = list(schedulers)
        self.known, self.owners, self.states = Known(), Owners(), States()
        self.steps, self.places = Steps(), Places()
        self.scales: dict[int, scalers.Scale] = {}
        self.eras: dict[int, int] = {}  # how often each scaler was updated
        self.last_scaler: Any = None
        self.trained: set[int] = set()  # the scalers that have to do with the watched models
        self.lr: dict[int, tuple[float, ...]] = {}
        self._facts_of_models: list[ModelFacts] = []
        self._facts_of_optimizers: list[OptimizerFacts] = []
        self._facts_of_scalers: list[ScalerFacts] = []
        self._kinds_of_schedulers: list[str] = []
        self._take_in(optimizers)
        self.compiled = any(facts.compiled for facts in self._facts_of_models)

    def _take_in(self, optimizers: Sequence[Any]) -> None:
        for model in self.models:
            self.known.models.add(model)
        for optimizer in optimizers:
            self._add_optimizer(optimizer, optimizers)
        self._facts_of_models = [setup.model_facts(model, optimizers) for model in self.models]
        for scaler in self.given_scalers:
            self.trained.add(self.add_scaler(scaler, given=True))
        for scheduler in self.given_schedulers:
            self.add_scheduler(scheduler)

    # -- optimizers

    def _add_optimizer(self, optimizer: Any, all_optimizers: Sequence[Any]) -> int:
        number = self.known.optimizers.add(optimizer)
        self.optimizers.append(optimizer)
        others = [each for each in all_optimizers if each is not optimizer]
        self._facts_of_optimizers.append(setup.optimizer_facts(optimizer, self.models, others))
        begin = Gradients.UNSCALED if self.given_scalers else Gradients.TRUE
        self.states.add(self.owners.add(optimizer), begin)
        self.steps.add_optimizer(number)
        self.lr[number] = rates(optimizer.param_groups)
        self.places.forget_names()
        return number

    def optimizer(self, optimizer: Any) -> int | None:
        """Return an optimizer's number. One that trains a watched model gets a number when it is first met."""
        number = self.known.optimizers.get(optimizer)
        if number is None:
            number = self._met(optimizer)
        if number is not None and self.owners.has_grown(number, self.optimizers[number]):
            self.states.renew(number, self.owners.read(number, self.optimizers[number]))
        return number

    def _met(self, optimizer: Any) -> int | None:
        if not isinstance(getattr(optimizer, "param_groups", None), list) or len(self.optimizers) >= MOST:
            return None
        ids = {id(each) for each in parameters_of(optimizer)}
        for number, other in enumerate(self.optimizers):
            if ids == {id(each) for each in parameters_of(other)}:
                # A wrapper's optimizer, or one made anew for the same parameters: it goes by the same number.
                return self.known.optimizers.add(optimizer, number)
        if ids.isdisjoint(id(each) for model in self.models for each in model.parameters()):
            return None
        return self._add_optimizer(optimizer, [*self.optimizers, optimizer])

    def read_again(self, optimizer: int) -> None:
        """An optimizer's settings were loaded."""
        self.lr[optimizer] = rates(self.optimizers[optimizer].param_groups)

    # -- scalers

    def add_scaler(self, scaler: Any, *, given: bool = False, asked: dict[str, Any] | None = None) -> int:
        """Give a scaler a number. `asked` are the arguments that it was made with, where that was seen."""
        new = self.known.scalers.count < MOST
        number = self.known.scalers.add(scaler)
        self.eras.setdefault(number, 0)
        self.scales[number] = scalers.Scale()
        if new:
            scale = self.scales[number].of(scaler)
            known = None if isinstance(scale, torch.Tensor) else scale
            self._facts_of_scalers.append(scalers.facts(scaler, known, given, asked))
            self.places.forget_names()
        return number

    def scaler(self, scaler: Any) -> int:
        number = self.known.scalers.get(scaler)
        return self.add_scaler(scaler) if number is None else number

    def trains(self, scaler: Any) -> int:
        """A scaler has to do with the watched models: return its number."""
        number = self.scaler(scaler)
        self.trained.add(number)
        return number

    def scale_of(self, scaler: Any) -> float | torch.Tensor:
        """Return a scaler's scale: a number, or a tensor that nobody writes to."""
        return self.scales[self.scaler(scaler)].of(scaler)

    def factor(self, scaler: Any, number: int, scale: float | torch.Tensor) -> Factor | None:
        """Return what a scaler of this number multiplies by, at this scale; None if it is disabled."""
        if not scalers.is_enabled(scaler):
            return None
        return Factor(number, None if isinstance(scale, torch.Tensor) else scale, self.eras[number])

    # -- schedulers

    def add_scheduler(self, scheduler: Any) -> int:
        if self.known.schedulers.count < MOST:
            self._kinds_of_schedulers.append(type(scheduler).__name__)
        return self.known.schedulers.add(scheduler)

    def scheduler(self, scheduler: Any) -> int:
        number = self.known.schedulers.get(scheduler)
        return self.add_scheduler(scheduler) if number is None else number
