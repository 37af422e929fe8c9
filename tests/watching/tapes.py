"""Runs made by hand, for rules: a tape takes down the events of a loop that nobody ran.

    tape = Tape()
    tape.step()                     # forward, scale, backward, step, update
    tape.step(skip=True)
    tape.note(Scheduled, scheduler=0, kind="StepLR", optimizer=0, before=(0.1,), after=(0.05,))
    findings = found("scheduler-on-skip", tape.run())

For what this machine cannot show (a GPU, thousands of steps), and for single steps that no loop would make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import amp_lab.watching.rules
from amp_lab.autocast.records import Source
from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Forward,
    Gradients,
    Scaled,
    Stepped,
    Updated,
)
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.run import ModelFacts, OptimizerFacts, Run, ScalerFacts
from amp_lab.watching.rules.rule import RULES, Finding

assert amp_lab.watching.rules


def found(rule: str, run: Run) -> list[Finding]:
    """Return what a rule finds in a run."""
    return list(RULES[rule].look(run))


class Tape:
    """The events of a loop, one call for each step.

    The scaler behaves as torch's: growth factor 2, backoff factor 0.5.
    """

    def __init__(
        self,
        *,
        scale: float | None = 1024.0,
        dtype: torch.dtype | None = torch.float16,
        device_type: str = "cpu",
        fused: bool = False,
        optimizer: str = "AdamW",
        growth_interval: int = 2000,
        schedulers: tuple[str, ...] = (),
        **scaler: Any,
    ) -> None:
        self.events: list[Event] = []
        self.scale, self.dtype, self.good, self.now = scale, dtype, 0, 1
        self.interval, self.schedulers, self.fused = growth_interval, schedulers, fused
        fp32 = frozenset({torch.float32})
        self.models = [ModelFacts("Net", device_type, fp32, frozenset(), 4, 4, 0)]
        self.optimizers = [OptimizerFacts(optimizer, fp32, 4, 0, 4, fused)]
        facts: dict[str, Any] = {
            "kind": "GradScaler",
            "enabled": True,
            "asked_enabled": True,
            "device": device_type,
            "scale": scale,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": growth_interval,
            "given": True,
        }
        self.scalers = [] if scale is None else [ScalerFacts(**(facts | scaler))]

    def note(self, kind: type[Event], /, line: int = 1, **fields: Any) -> Event:
        """Take down one event of the present step, made in a line of train.py."""
        where = Source("train.py", line, "train", "")
        event = kind(number=len(self.events) + 1, step=self.now, where=where, **fields)
        self.events.append(event)
        return event

    def step(
        self,
        skip: bool = False,
        *,
        finite: bool = True,
        before_step: Callable[[], object] = lambda: None,
        before_update: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
        rates: tuple[float, ...] = (0.1,),
    ) -> Tape:
        """Take down a whole step, with what happens in its gaps, and return the tape."""
        if self._ended:
            self.now += 1
        self._ended = False
        true, scaled = Gradients.TRUE, Gradients.SCALED
        loss = Later(bool, finite)
        self.note(Forward, model=0, device_type="cpu", training=True, grad=True, autocast=self.dtype)
        if self.scale is None:
            self.note(
                Backward,
                how="backward",
                losses=(1,),
                loss_dtype=torch.float32,
                finite=loss,
                scaled_by=None,
                touched=(0,),
            )
            before_step()
            self._asked(None, true, False, rates)
        else:
            scale = Later(float, self.scale)
            self.note(
                Scaled,
                scaler=0,
                dtype=torch.float32,
                shape=(),
                scale=scale,
                finite=loss,
                result=1,
                result_dtype=torch.float32,
            )
            self.note(
                Backward,
                how="backward",
                losses=(1,),
                loss_dtype=torch.float32,
                finite=loss,
                scaled_by=0,
                scale=scale,
                touched=(0,),
            )
            before_step()
            self._asked(0, scaled, skip, rates)
            before_update()
            self._update(skip)
        self._ended = True
        after()
        return self

    _ended = False

    def _asked(self, scaler: int | None, state: Gradients, skip: bool, rates: tuple[float, ...]) -> None:
        self.note(
            Stepped,
            line=10,
            optimizer=0,
            scaler=scaler,
            state=state,
            skipped=Later(bool, skip),
            ran=self.fused or not skip,
            scale=None if self.scale is None else Later(float, self.scale),
            fused=self.fused,
            parameters=4,
            with_gradient=4,
            rates=rates,
        )

    def _update(self, skip: bool) -> None:
        assert self.scale is not None
        before = self.scale
        self.good = 0 if skip else self.good + 1
        if skip:
            self.scale *= 0.5
        elif self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0
        self.note(Updated, scaler=0, before=Later(float, before), after=Later(float, self.scale))

    def run(self) -> Run:
        """Return what was taken down; every step was kept."""
        skips = [
            e.step for e in self.events if isinstance(e, Stepped) and e.scaler is not None and e.skipped.value
        ]
        return Run(
            self.models,
            self.optimizers,
            self.scalers,
            self.schedulers,
            self.events,
            self.now,
            frozenset(range(1, self.now + 1)),
            skips=skips,
        )
