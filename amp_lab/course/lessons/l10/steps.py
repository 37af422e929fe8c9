"""What is seen of the steps of exercise 10.3, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.staging import Stage
from amp_lab.course.lessons.l10.comparing import State
from amp_lab.course.lessons.l10.scenes import RATE, SCALE, SCENES, Scene, make_model, mean_square
from amp_lab.course.lessons.l10.talking import Talk, heard


class Other(NamedTuple):
    """What was returned instead of a bool, in words: it may be of a kind that cannot be sent."""

    shown: str
    kind: str


class Step(NamedTuple):
    """What was seen of one step on one rank."""

    weights: State
    scale: float
    exchanges: int  # of all gradients, by DDP
    by_hand: int  # the same, by the learner's own calls
    early: bool  # DDP exchanged, and more forward passes followed
    barriers: int
    steps: int  # of the optimizer
    regions: tuple[torch.dtype | None, ...]  # of forward passes that a backward pass can go through
    got: bool | Other | None


class Bench:
    """What one rank needs for a scene, and what it counts."""

    def __init__(self, scene: Scene, rank: int) -> None:
        self.scene, self.rank = scene, rank
        self.model = make_model(scene)
        self.ddp = DistributedDataParallel(self.model)
        self.ddp.register_comm_hook(None, lambda _state, bucket: self._exchange(bucket))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.optimizer.register_step_post_hook(self._note_step)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)
        self.model.register_forward_hook(self._note_region)
        self.numbers = sum(each.numel() for each in self.model.parameters())
        self.talk = Talk()
        self._begin()

    def _begin(self) -> None:
        self.exchanges = self.steps = self.forwards_then = 0
        self.regions: list[torch.dtype | None] = []

    def make(self, run: Callable[..., Any], answer: Callable[..., Any], number: int) -> Step:
        """Let the learner's function make a step, and return what was seen."""
        self._begin()
        window = self.scene.window(number, self.rank)
        with heard() as self.talk:
            got = run(answer, self.ddp, self.optimizer, self.scaler, mean_square, window)
        plain = got is None or type(got) is bool
        return Step(
            weights={name: each.detach().clone() for name, each in self.model.named_parameters()},
            scale=self.scaler.get_scale(),
            exchanges=self.exchanges,
            by_hand=self.talk.exchanges(self.numbers),
            early=0 < self.forwards_then < len(self.regions),
            barriers=len(self.talk.barriers),
            steps=self.steps,
            regions=tuple(self.regions),
            got=got if plain else Other(describe(got), kind(got)),
        )

    def _exchange(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.exchanges += 1
        self.forwards_then = len(self.regions)
        by_hand = self.talk.numbers.copy()
        done = allreduce_hook(self.ddp.process_group, bucket)
        self.talk.numbers = by_hand
        return done

    def _note_step(self, *_: Any) -> None:
        self.steps += 1

    def _note_region(self, _model: nn.Module, _inputs: Any, outputs: torch.Tensor) -> None:
        if outputs.requires_grad:
            self.regions.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)


def play(stage: Stage, answer: Callable[..., Any]) -> list[list[Step]]:
    """Make all steps of all scenes on this rank; `stage.seen` tells at which it is, and what was seen so far."""
    seen: list[list[Step]] = []
    stage.seen["steps"] = seen
    for scene in SCENES:
        bench = Bench(scene, stage.rank)
        seen.append([])
        for number in range(len(scene.plan)):
            seen[-1].append(bench.make(stage.run, answer, number))
            stage.meet()
    return seen
