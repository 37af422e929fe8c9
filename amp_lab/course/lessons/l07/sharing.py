"""Exercise 7.4: two optimizers that share a scaler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07.nets import Net
from amp_lab.course.lessons.l07.scenes import (
    DEVICE,
    Bench,
    Loss,
    Scene,
    make_net,
    make_optimizer,
    make_scaler,
)
from amp_lab.course.lessons.l07.trials import Trial, expect_loss, looks_like, play
from amp_lab.course.lessons.l07.verdicts import expect_no_graph, expect_step

_CODE = 4  # features that the encoder hands to the head
# `e`: the gradients of the encoder overflow, `h`: those of the head, `b`: of both.
SCENES = (
    Scene("ccni"),
    Scene("cbcc", seed=1),
    Scene("ccc", scale=2.0),  # what a step leaves in `.grad` is half as large as what the next one adds
    Scene("cecc", seed=2),
    Scene("chcc", seed=3),
    Scene("eccb"),
    Scene("hceb", ours=True, interval=2),
    Scene("cccc", interval=1),
    Scene("ccc", scale=2.0**20, size=2.0**-24),
    Scene("cehc", optimizer="Adam"),
    Scene("cehb", optimizer="fused SGD"),
    Scene("cc", stale=500.0),
    Scene("cce", stale=torch.inf),
)


class SharingBench(Bench):
    """Two networks, each with an optimizer of its own, and one scaler."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.calls = scene, []
        self.nets = [
            make_net(self.calls, scene.net, scene.seed, outputs=_CODE),
            make_net(self.calls, scene.net, scene.seed + 1, features=_CODE, number=1),
        ]
        self.optimizers = [
            make_optimizer(scene, net, self.calls, number) for number, net in enumerate(self.nets)
        ]
        self.scaler = make_scaler(scene, self.calls)
        if scene.stale is not None:
            for net in self.nets:
                for each in net.parameters():
                    each.grad = torch.full_like(each, scene.stale)

    @property
    def models(self) -> list[Net]:
        """Encoder and head."""
        return self.nets

    @property
    def all_optimizers(self) -> list[torch.optim.Optimizer]:
        """That of the encoder, and that of the head."""
        return self.optimizers

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step."""
        letter = self.scene.plan[step]
        self.nets[0].swells, self.nets[1].swells = letter in "eb", letter in "hb"
        inputs, targets = self.scene.batch(step)
        return (*self.nets, *self.optimizers, self.scaler, self.scene.loss_function, inputs, targets)


def step_with(
    *, between: bool = False, together: bool = False, clears: tuple[int, ...] = (0, 1), passes: int = 1
) -> Callable[..., torch.Tensor]:
    """Return the right step, but for what is given."""

    def step(
        encoder: torch.nn.Module,
        head: torch.nn.Module,
        encoder_optimizer: torch.optim.Optimizer,
        head_optimizer: torch.optim.Optimizer,
        scaler: Any,
        loss_function: Loss,
        inputs: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        optimizers = (encoder_optimizer, head_optimizer)
        for number in clears:
            optimizers[number].zero_grad()
        with torch.autocast(DEVICE.type, torch.float16):
            loss = loss_function(head(encoder(inputs)), targets)
        for number in range(passes):
            scaler.scale(loss).backward(retain_graph=number + 1 < passes)
        both = [*encoder.parameters(), *head.parameters()]
        for each in optimizers:
            scaler.unscale_(each)
        grads = [each.grad for each in both if each.grad is not None]
        finite = all(bool(grad.isfinite().all()) for grad in grads)
        for each in optimizers:
            if finite or not together:
                scaler.step(each)
            if between:
                scaler.update()
        if not between:
            scaler.update()
        return loss.detach()

    return step


_RULES = {"update-between-optimizers": "updates-between", "backward-twice": "walks-twice"}


@checker("7.4")
def two_optimizers_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene in SCENES:
        play(ask, "two_optimizers_step", partial(SharingBench, scene), step_with(), _judge)


def _judge(trial: Trial) -> None:
    expect_step(trial, _explain, "wrong-pair", told="watcher-says", rules=_RULES, optimizers=2)
    if not trial.error:
        expect_no_graph(trial)
        expect_loss(trial, scaled="pair-loss-scaled", attached="pair-loss-attached", wrong="wrong-pair-loss")


def _explain(trial: Trial, observed: dict[str, Any]) -> None:
    names = [each.name for each in trial.calls]
    last = len(names) - 1 - names[::-1].index("step") if "step" in names else 0
    if "update" in names[:last] and (names.count("update") > 1 or names.count("step") > 1):
        raise Mistake("updates-between", **observed)
    if "No inf checks were recorded for this optimizer" in trial.error:
        _explain_missing(trial, observed)
    if trial.error:
        return
    if looks_like(trial, step_with(together=True)):
        raise Mistake("all-or-nothing", **observed)
    asked = {each.of for each in trial.calls if each.name in ("step", "runs")}
    if len(asked) == 1:
        raise Mistake("one-steps", **observed | {"which": "head" if asked == {0} else "encoder"})
    if looks_like(trial, step_with(passes=2)):
        raise Mistake("walks-twice", **observed)
    for number, which in enumerate(("encoder", "head")):
        if looks_like(trial, step_with(clears=(1 - number,))):
            raise Mistake("one-cleared", **observed | {"which": which})


def _explain_missing(trial: Trial, observed: dict[str, Any]) -> None:
    """Recognise a network that no gradient has reached."""
    names = [each.name for each in trial.calls]
    between = names[names.index("backward") : names.index("step")] if "backward" in names else []
    if between and "zero" not in between and "scale" in names:
        encoder, _, *_ = trial.bench.arguments(trial.number)
        if all(each.grad is None for each in encoder.parameters()):
            raise Mistake("cut-off", **observed)
