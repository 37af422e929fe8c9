"""Exercise 7.6: a penalty on the norm of the gradient."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07.scenes import DEVICE, Bench, Loss, Scene, seed_all
from amp_lab.course.lessons.l07.trials import (
    Step,
    Trial,
    difference,
    expect_number,
    looks_like,
    play,
    quietly,
)
from amp_lab.course.lessons.l07.verdicts import Explain, expect_step

_RTOL = 0.03  # gradients of gradients, in FP16
# One more after another, the same training at other scales.
SCENES = (
    (Scene("ccc", scale=2.0**4), 0.5),
    (Scene("ccc", scale=2.0**10), 0.5),
    (Scene("ccoc", scale=2.0**12), 0.5),
    (Scene("occ", seed=1), 2.0),
    (Scene("ccc", scale=2.0**20, size=2.0**-24), 0.5),
    (Scene("cccc", interval=1, seed=2, ours=True), 0.25),
    (Scene("cco", seed=3), 0.0),
    (Scene("coc", optimizer="fused SGD"), 0.5),
    (Scene("ccc", net="dropout"), 0.5),
    (Scene("cc", stale=torch.inf), 0.5),
)
Grads = Sequence[torch.Tensor]
Norm = Callable[[Grads], torch.Tensor]


class PenalisingBench(Bench):
    """A bench whose learner gets the weight of the penalty, too."""

    def __init__(self, scene: Scene, weight: float) -> None:
        super().__init__(scene)
        self.weight = weight

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step."""
        return (*super().arguments(step), self.weight)


def norm_of(grads: Grads) -> torch.Tensor:
    """Return the Euclidean norm of all gradients together."""
    return torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()


def _square(grads: Grads) -> torch.Tensor:
    return torch.stack([grad.square().sum() for grad in grads]).sum()


def _sum_of_norms(grads: Grads) -> torch.Tensor:
    return torch.stack([grad.square().sum().sqrt() for grad in grads]).sum()


def _of_some(choose: Callable[[Grads], Grads]) -> Norm:
    return lambda grads: norm_of(choose(grads))


def _with_eps(grads: Grads) -> torch.Tensor:
    return (_square(grads) + 1e-6).sqrt()


def step_with(
    norm: Norm = norm_of,
    *,
    scaled: bool = True,
    divides: Literal["all", "twice", "nothing"] = "all",
    of_inputs: bool = False,
    constant: bool = False,
    weighted: bool = True,
    outside: bool = False,
    adds: bool = False,
    without_loss: bool = False,
    without_penalty: bool = False,
) -> Callable[..., torch.Tensor]:
    """Return the right step, but for what is given."""

    def step(
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        loss_function: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weight: float,
    ) -> torch.Tensor:
        optimizer.zero_grad()
        inputs = inputs.clone().requires_grad_(of_inputs)
        with torch.autocast(DEVICE.type, torch.float16):
            loss = loss_function(model(inputs), targets)
        parameters = [inputs] if of_inputs else [*model.parameters()]
        outputs = scaler.scale(loss) if scaled else loss
        grads = torch.autograd.grad(outputs, parameters, create_graph=True)
        if adds:
            for each, grad in zip(parameters, grads, strict=True):
                each.grad = grad.detach().clone()
        if scaled and divides != "nothing":
            grads = tuple(grad / scaler.get_scale() for grad in grads)
        penalty = norm(grads)
        if divides == "twice":
            penalty = penalty / scaler.get_scale()
        penalty = (weight if weighted else 1) * (penalty.detach() if constant else penalty)
        penalty = 0 * penalty if without_penalty else penalty
        total = penalty if without_loss else loss + penalty
        if outside:
            (scaler.scale(loss) + penalty).backward()
        else:
            scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
        return total.detach()

    return step


_MISCONCEPTIONS = (
    ("penalty-of-scaled", step_with(divides="nothing")),
    ("penalty-is-constant", step_with(constant=True)),
    ("penalty-is-constant", step_with(constant=True, divides="nothing")),
    ("penalty-is-constant", step_with(constant=True, adds=True)),
    ("weight-ignored", step_with(weighted=False)),
    ("squared-norm", step_with(_square)),
    ("norms-summed", step_with(_sum_of_norms)),
    ("norm-of-some", step_with(_of_some(lambda grads: [grad for grad in grads if grad.dim() > 1]))),
    ("norm-of-some", step_with(_of_some(lambda grads: [grad for grad in grads if grad.dim() == 1]))),
    ("norm-of-some", step_with(_of_some(lambda grads: grads[:1]))),
    ("norm-of-some", step_with(_of_some(lambda grads: grads[-1:]))),
    ("norm-of-some", step_with(_of_some(lambda grads: grads[:2]))),
    ("norm-of-some", step_with(_of_some(lambda grads: grads[-2:]))),
    ("norm-of-inputs", step_with(of_inputs=True)),
    ("eps-too-large", step_with(_with_eps)),
    ("penalty-outside", step_with(outside=True)),
    ("divided-too-often", step_with(divides="twice")),
    ("counted-twice", step_with(adds=True)),
    ("counted-twice", step_with(adds=True, divides="nothing")),
    ("loss-left-out", step_with(without_loss=True)),
)
# Both change nothing but the size of the penalty, to next to nothing: what is returned tells them apart.
_BY_RETURN = ("penalty-outside", "divided-too-often")


@checker("7.6")
def penalty_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene, weight in SCENES:
        words = f"penalty_step` with `weight={weight:g}` and a loss scale of `{scene.scale:g}"
        earlier = SCENES[: SCENES.index((scene, weight))]
        judge = partial(_judge, partial(_explain, earlier))
        play(ask, words, partial(PenalisingBench, scene, weight), step_with(), judge)


def _judge(explain: Explain, trial: Trial) -> None:
    expect_step(
        trial, explain, "wrong-penalised-step", rules={"penalty-of-scaled": "penalty-of-scaled"}, rtol=_RTOL
    )
    if trial.error:
        return
    expect_number(trial, trial.want, "total-attached")
    got, want = float(trial.got), float(trial.want)
    shown = {"call": trial.call, "got": f"{got:.6g}", "want": f"{want:.6g}"}
    if not math.isfinite(want):
        if math.isfinite(got) and trial.bench.arguments(trial.number)[-1] != 0:
            raise Mistake("overflow-unsaid", **shown)
        return
    if math.isclose(got, want, rel_tol=_RTOL / 2):
        return
    if math.isclose(got, want * trial.before.scale, rel_tol=_RTOL / 2):
        raise Mistake("total-scaled", **shown)
    raise Mistake("returns-loss" if _is_loss(trial, got) else "wrong-total-loss", **shown)


def _is_loss(trial: Trial, got: float) -> bool:
    """Return whether a number is the loss without its penalty."""
    bench, step = trial.make(), step_with()
    for number in range(trial.number):
        step(*bench.arguments(number))
    _, _, _, loss_function, inputs, targets, _ = bench.arguments(trial.number)
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.float16):
        loss = float(loss_function(bench.net(inputs), targets))
    return math.isclose(got, loss, rel_tol=_RTOL / 2)


def _explain(earlier: Sequence[tuple[Scene, float]], trial: Trial, observed: dict[str, Any]) -> None:
    if "backward through the graph a second time" in trial.error:
        raise Mistake("graph-freed", **observed)
    if trial.error:
        return
    names = [each.name for each in trial.calls]
    if trial.bench.scene.size < 1 and "scale" not in names[: names.index("backward")]:
        raise Mistake("first-pass-unscaled", **observed)
    without = looks_like(trial, step_with(without_penalty=True), _RTOL)
    if without and _returns(trial, without):
        raise Mistake("no-penalty", **observed)
    alike = ((name, step, looks_like(trial, step, _RTOL)) for name, step in _MISCONCEPTIONS)
    found = [
        (name, seen)
        for name, step, seen in alike
        if seen and not any(_fails(step, *each) for each in earlier)
    ]
    for name, seen in found:
        if _returns(trial, seen):
            raise Mistake(name, **observed)
    for name, _ in found:
        if name not in _BY_RETURN:
            raise Mistake(name, **observed)


def _returns(trial: Trial, other: Trial) -> bool:
    """Return whether the answer returned what another step did."""
    return isinstance(trial.got, torch.Tensor) and bool(
        torch.isclose(trial.got, other.want, rtol=_RTOL / 2).all()
    )


@functools.cache
def _fails(step: Step, scene: Scene, weight: float) -> bool:
    """Return whether a wrong step is told from the right one in a scene: whoever has passed there makes another one."""
    bench, other = PenalisingBench(scene, weight), PenalisingBench(scene, weight)
    start = bench.state()
    for number in range(len(scene.plan)):
        for each, function in ((bench, step), (other, step_with())):
            with torch.random.fork_rng(devices=[]):
                seed_all(number)
                quietly(function, *each.arguments(number))
    return difference(bench.state(), other.state(), start, _RTOL) is not None
