"""Exercise 7.5: a scheduler that waits for real steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l07.scenes import DEVICE, Bench, Loss, Scene, State
from amp_lab.course.lessons.l07.trials import Step, Trial, looks_like, play, quietly
from amp_lab.course.lessons.l07.verdicts import expect_step

SCENES = (
    Scene("cccc"),
    Scene("ccocc", seed=1),
    Scene("occc", seed=2),
    Scene("coocc", ours=True),
    Scene("cccoc", interval=1),  # the scale grows in every step that is not skipped
    Scene("cccccoccc", interval=2, ours=True),
    Scene("ccoc", optimizer="Adam"),
    Scene("ccocc", optimizer="fused SGD"),
    Scene("occoc", optimizer="fused Adam", interval=2),
    Scene("cco", stale=torch.inf),
    Scene("cfcgc", seed=4),
    # Fused SGD makes its momenta in its first step, and leaves them unset if that one is skipped.
    Scene("cgfc", optimizer="fused SGD", ours=True, seed=5),
)
_FACTOR = 0.5
_SPOILT = {"f": torch.inf, "g": torch.nan}


class SchedulingBench(Bench):
    """A bench with a scheduler that halves the learning rate, and with two more letters for its plan.

    `f` is for a step in which one number of one gradient is infinite, in the middle of the network, `g` for a NaN.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=_FACTOR)
        self._spoilt: float | None = None
        if set(scene.plan) & set(_SPOILT):
            self.net.last.weight.register_hook(self._spoil)  # type: ignore[no-untyped-call]

    def _spoil(self, grad: torch.Tensor) -> torch.Tensor | None:
        if self._spoilt is None:
            return None
        grad = grad.clone()
        grad[-1, -1] = self._spoilt
        return grad

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step."""
        self._spoilt = _SPOILT.get(self.scene.plan[step])
        model, optimizer, scaler, *rest = super().arguments(step)
        return (model, optimizer, scaler, self.scheduler, *rest)

    def state(self) -> State:
        """Return copies of what the loop is about, and how far the scheduler has counted."""
        state = super().state()
        epoch = torch.tensor(float(self.scheduler.last_epoch))
        return state._replace(tensors=state.tensors | {"last_epoch of the scheduler": epoch})


Decide = Callable[
    [float, float, bool], bool
]  # by the scale before, the scale after, and whether step() was called


def step_with(decide: Decide, *, first: Callable[[bool], bool] | None = None) -> Callable[..., bool]:
    """Return the right step, but for when the scheduler moves; `first`: before the optimizer, by finite gradients."""

    def step(
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        loss_function: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
    ) -> bool:
        called: list[bool] = []
        handle = optimizer.register_step_post_hook(lambda *_: called.append(True))
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.float16):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        if first and first(
            all(bool(each.grad.isfinite().all()) for each in model.parameters() if each.grad is not None)
        ):
            scheduler.step()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        after = scaler.get_scale()
        handle.remove()
        if not first and decide(before, after, bool(called)):
            scheduler.step()
        return bool(after >= before)

    return step


right = step_with(lambda before, after, called: after >= before)
_ALWAYS = step_with(lambda before, after, called: True)
_MISCONCEPTIONS = (
    ("schedules-first", step_with(lambda before, after, called: False, first=lambda finite: True)),
    ("schedules-first", step_with(lambda before, after, called: False, first=lambda finite: finite)),
    ("never-schedules", step_with(lambda before, after, called: False)),
    ("growth-is-skip", step_with(lambda before, after, called: after == before)),
    ("only-on-growth", step_with(lambda before, after, called: after > before)),
    ("only-on-skip", step_with(lambda before, after, called: after < before)),
    ("always-schedules", _ALWAYS),
)
# One step is not enough to tell when a scheduler moves: here steps are skipped, and the scale grows in others.
_PROBE = Scene("ccocccc", interval=2)


@checker("7.5")
def scheduled_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene in SCENES:
        play(ask, "scheduled_step", partial(SchedulingBench, scene), right, partial(_judge, ask))


def _judge(ask: Ask, trial: Trial) -> None:
    expect_step(trial, partial(_explain, ask), "wrong-schedule")
    if trial.error:
        return
    got, want = trial.got, trial.want
    if got is None:
        raise Mistake("returned-none", call=trial.call, got=None, want="`True` or `False`")
    if type(got) is not bool:
        advice = "`bool(...)` makes one of a tensor with one truth value."
        words = {"got": describe(got), "kind": kind(got), "want": "a Python `bool`", "advice": advice}
        raise Mistake("wrong-type", call=trial.call, **words)
    if got is not want:
        raise Mistake("wrong-report", call=trial.call, got=got, want=want)


def _explain(ask: Ask, trial: Trial, observed: dict[str, Any]) -> None:
    if trial.error:
        return
    if trial.overflows and "fused" in trial.bench.scene.optimizer and looks_like(trial, _ALWAYS):
        raise Mistake("fused-counts", **observed)
    if observed["place"].startswith("`last_epoch"):
        raise Mistake("rate-by-hand", **observed)
    seen = _history(ask, ask.answer)
    for diagnosis, step in _MISCONCEPTIONS:
        if seen == _history(None, step):
            raise Mistake(diagnosis, **observed)
    if trial.bench.scene.plan[trial.number] in _SPOILT and seen == _history(None, right):
        raise Mistake("looks-in-part", **observed)


def _history(ask: Ask | None, step: Step) -> list[tuple[float, int, list[float]]]:
    """Return rate, count and some weights after each step of the probe; nothing, if something raises."""
    bench, seen = SchedulingBench(_PROBE), []
    for number in range(len(_PROBE.plan)):
        arguments = bench.arguments(number)
        try:
            if ask is None:
                quietly(step, *arguments)
            else:
                ask.run(step, *arguments)
        except Contained:
            return []
        weights = [round(each, 4) for each in bench.net.last.bias.tolist()]
        seen.append((bench.optimizer.param_groups[0]["lr"], bench.scheduler.last_epoch, weights))
    return seen
