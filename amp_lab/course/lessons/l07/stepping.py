"""Exercise 7.1: the canonical training step with a gradient scaler."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.lessons.l07.scenes import DEVICE, Bench, Loss, Scene
from amp_lab.course.lessons.l07.trials import Trial, expect_loss, play
from amp_lab.course.lessons.l07.verdicts import expect_no_graph, expect_step

SCENES = (
    Scene("ccocnci"),
    Scene("occ", seed=1),
    Scene("ccc", scale=2.0),  # what a step leaves in `.grad` is half as large as what the next one adds
    Scene("ccc", scale=2.0**20, size=2.0**-24),
    Scene("coocc", ours=True),
    Scene("cccocc", interval=1),
    Scene("ccccocc", interval=2, ours=True),
    Scene("ccocc", optimizer="Adam"),
    # Not in its first step: PyTorch's fused SGD then begins with momenta that nobody has written.
    Scene("cocoo", optimizer="fused SGD"),
    Scene("occo", optimizer="fused Adam"),
    Scene("ccoc", net="batch norm"),
    Scene("ccoc", net="dropout"),
    Scene("cc", stale=500.0),
    Scene("cccoc", stale=torch.inf),
    Scene("cc", stale=torch.nan, ours=True),
)


def right(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    loss_function: Loss,
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Make the step that is right."""
    optimizer.zero_grad()
    with torch.autocast(DEVICE.type, torch.float16):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@checker("7.1")
def training_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene in SCENES:
        play(ask, "training_step", partial(Bench, scene), right, _judge, by_name=True)


def _judge(trial: Trial) -> None:
    expect_step(trial, _explain, "wrong-step", told="watcher-says", by_name=True)
    if not trial.error:
        expect_no_graph(trial, by_name=True)
        expect_loss(trial, scaled="loss-scaled", attached="loss-attached", wrong="wrong-loss")


def _explain(trial: Trial, observed: dict[str, Any]) -> None:
    """Leave it to the order of calls."""
