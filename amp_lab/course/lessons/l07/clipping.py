"""Exercise 7.2: a step with clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07.scenes import DEVICE, Bench, Loss, Scene
from amp_lab.course.lessons.l07.trials import RTOL, Trial, expect_number, looks_like, play
from amp_lab.course.lessons.l07.verdicts import expect_no_graph, expect_step, known_to_pytorch

# Norms are from 1 to 3: the first limit cuts each of them, the next one some, and little; the last one none.
_TIGHT, _LOOSE, _WIDE = 0.5, 1.5, 1000.0
SCENES = (
    (Scene("ccoc", seed=1), _WIDE),
    (Scene("ccocnci"), _TIGHT),
    (Scene("occcoc", interval=2, seed=2), _LOOSE),
    (Scene("ccoc", scale=2.0**4), _TIGHT),
    (Scene("ccoc", scale=2.0**14, ours=True), _TIGHT),
    # No smaller: PyTorch adds 1e-6 to the norm that it divides by.
    (Scene("ccc", scale=2.0**18, size=2.0**-12), _TIGHT * 2.0**-12),
    (Scene("ccoc", optimizer="Adam"), _TIGHT),
    (Scene("ccoc", optimizer="fused SGD"), _TIGHT),
    (Scene("ccoc", optimizer="fused Adam", seed=3), _LOOSE),
    (Scene("cco", net="batch norm"), _TIGHT),
    (Scene("cc", stale=500.0), _TIGHT),
    (Scene("cc", stale=torch.inf), _TIGHT),
)
Cut = Callable[[Sequence[torch.Tensor], float], torch.Tensor]


class ClippingBench(Bench):
    """A bench whose learner gets a limit for the norm, too."""

    def __init__(self, scene: Scene, max_norm: float) -> None:
        super().__init__(scene)
        self.max_norm = max_norm

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step."""
        return (*super().arguments(step), self.max_norm)


def _clip(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


def _leave(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    return torch.zeros(())


def _by_value(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    torch.nn.utils.clip_grad_value_(parameters, max_norm)
    return torch.zeros(())


def _one_by_one(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    for each in parameters:
        torch.nn.utils.clip_grad_norm_([each], max_norm)
    return torch.zeros(())


def _by_layer(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    for number in range(0, len(parameters), 2):
        torch.nn.utils.clip_grad_norm_(parameters[number : number + 2], max_norm)
    return torch.zeros(())


def _always(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Bring the norm to the limit, also from below."""
    grads = [each.grad for each in parameters if each.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    for grad in grads:
        grad.mul_(max_norm / norm)
    return norm


def step_with(
    cut: Cut = _clip, *, unscale: bool = True, by_hand: bool = False, twice: bool = False
) -> Callable[..., torch.Tensor]:
    """Return the right step, but for how gradients are cut, and how they are unscaled before it."""

    def step(
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        loss_function: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        max_norm: float,
    ) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.float16):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        parameters = [*model.parameters()]
        if unscale:
            scaler.unscale_(optimizer)
        if by_hand or twice:
            for each in parameters:
                assert each.grad is not None
                each.grad.div_(scaler.get_scale())
        norm = cut(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()
        return norm

    return step


_MISCONCEPTIONS = (
    ("clips-scaled", step_with(unscale=False)),
    ("not-clipped", step_with(_leave)),
    ("unscales-again", step_with(unscale=False, by_hand=True)),
    ("unscales-again", step_with(_leave, unscale=False, by_hand=True)),
    ("unscales-again", step_with(twice=True)),
    ("unscales-again", step_with(_leave, twice=True)),
    ("cuts-values", step_with(_by_value)),
    ("cuts-values", step_with(_by_value, unscale=False)),
    ("one-by-one", step_with(_one_by_one)),
    ("one-by-one", step_with(_one_by_one, unscale=False)),
    ("one-by-one", step_with(_by_layer)),
    ("always-cuts", step_with(_always)),
    ("always-cuts", step_with(_always, unscale=False)),
)


_RULES = {
    "clip-before-unscale": "clips-scaled",
    "clip-after-step": "not-clipped",
    "clip-of-nothing": "not-clipped",
    "clip-raises-on-overflow": "raises-on-overflow",
    "unscaled-by-hand": "unscales-again",
}


@checker("7.2")
def clipped_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene, max_norm in SCENES:
        play(ask, "clipped_step", partial(ClippingBench, scene, max_norm), step_with(), _judge)


def _judge(trial: Trial) -> None:
    expect_step(trial, _explain, "wrong-clipped-step", told="watcher-says", rules=_RULES)
    if not trial.error:
        expect_no_graph(trial)
        _expect_norm(trial)


def _explain(trial: Trial, observed: dict[str, Any]) -> None:
    """Recognise what is wrong about the clipping."""
    if trial.error:
        if trial.overflows and not known_to_pytorch(trial):  # steps without an overflow were right up to here
            raise Mistake("raises-on-overflow", **observed)
        return
    for diagnosis, step in _MISCONCEPTIONS:
        if looks_like(trial, step):
            raise Mistake(diagnosis, **observed)


def _expect_norm(trial: Trial) -> None:
    if isinstance(trial.got, torch.Tensor) and trial.got.shape != ():
        raise Mistake("norm-shape", call=trial.call, got=tuple(trial.got.shape), want="`()`")
    expect_number(trial, trial.want, "norm-attached")
    got, want = float(trial.got), float(trial.want)
    shown = {"call": trial.call, "got": f"{got:.6g}", "want": f"{want:.6g}"}
    if not math.isfinite(want):
        if math.isfinite(got):
            raise Mistake("overflow-hidden", **shown)
        return
    limit = trial.bench.max_norm  # type: ignore[attr-defined]
    if math.isclose(got, want, rel_tol=RTOL):
        return
    scale = trial.before.scale
    if math.isclose(got, want * scale, rel_tol=RTOL):
        raise Mistake("norm-scaled", **shown)
    if got == 0:
        raise Mistake("norm-of-nothing", **shown)
    if math.isclose(got, min(want, limit), rel_tol=RTOL):
        raise Mistake("norm-after", **shown)
    raise Mistake("wrong-norm", **shown)
