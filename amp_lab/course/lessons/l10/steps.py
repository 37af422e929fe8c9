"""Steps of two ranks for exercise 10.3: scenes, what a rank does in them, and what is right, from one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.staging import Stage
from amp_lab.course.lessons.l10.comparing import State
from amp_lab.course.lessons.l10.talking import Talk, heard

RANKS = 2
_IN, _HIDDEN, _OUT, _SAMPLES = 4, 6, 2, 4
_SCALE, _RATE = 2.0**10, 0.05
_FAR = 6e4  # of an input whose weights are zero: the outputs do not feel it, the gradient overflows
_HAPPENS = {
    "c": "",
    "o": ", where a gradient overflows on rank 1, in its first micro-batch",
    "l": ", where a gradient overflows on rank 0, in its last micro-batch",
    "n": ", where the loss of rank 1's first micro-batch is NaN",
    "N": ", where the loss of rank 0's last micro-batch is NaN",
}

Batch = tuple[torch.Tensor, torch.Tensor]


class Scene(NamedTuple):
    """One training. `plan` has a letter for each step, `parts` is how many micro-batches a step has on each rank."""

    plan: str
    parts: int
    stale: float | None = None  # what `.grad` is full of at first

    def call(self, step: int) -> str:
        """Return in words which call of the learner's function this is."""
        each = f"{self.parts} micro-batch{'es' if self.parts > 1 else ''} on each rank"
        stale = f", `.grad` full of {self.stale:g} before" if self.stale is not None and step == 0 else ""
        return f"`ddp_step` in step {step + 1} ({each}{stale}{_HAPPENS[self.plan[step]]})"

    def clean(self, step: int) -> bool:
        """Return whether all gradients of a step are finite."""
        return self.plan[step] == "c"

    def window(self, step: int, rank: int) -> list[Batch]:
        """Make a rank's micro-batches of a step, counted from 0."""
        draw = torch.Generator().manual_seed(100 * step + 10 * self.parts + rank)
        window = [
            (torch.randn(_SAMPLES, _IN, generator=draw), torch.randn(_SAMPLES, _OUT, generator=draw))
            for _ in range(self.parts)
        ]
        for inputs, _ in window:
            inputs[:, -1] = 0
        place = {
            ("o", 1): (0, _FAR),
            ("l", 0): (-1, _FAR),
            ("n", 1): (0, torch.nan),
            ("N", 0): (-1, torch.nan),
        }
        if (self.plan[step], rank) in place:
            number, value = place[self.plan[step], rank]
            window[number][0][0, -1] = value
        return window


SCENES = (
    Scene("cc", 1),
    Scene("ccc", 3),
    Scene("cc", 2, stale=50.0),
    Scene("coclc", 3),
    Scene("lc", 1),
    Scene("cncN", 2),
)


class Other(NamedTuple):
    """What was returned instead of a bool, in words: it may be of a kind that cannot be sent."""

    shown: str
    kind: str


class Step(NamedTuple):
    """What was seen of one step on one rank."""

    weights: State
    scale: float
    exchanges: int  # of all gradients, by DDP or by hand
    early: bool  # DDP exchanged, and more forward passes followed
    barriers: int
    steps: int  # of the optimizer
    regions: tuple[torch.dtype | None, ...]
    got: bool | Other | None


def mean_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the error in FP32, as the loss functions of autocast do."""
    return (outputs.float() - targets).square().mean()


def make_model(scene: Scene) -> nn.Module:
    """Make the model of a scene, the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        model = nn.Sequential(nn.Linear(_IN, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _OUT))
    with torch.no_grad():
        model.get_submodule("0").get_parameter("weight")[:, -1] = 0
    for each in model.parameters():
        each.grad = None if scene.stale is None else torch.full_like(each, scene.stale)
    return model


class Bench:
    """What one rank needs for a scene, and what it counts."""

    def __init__(self, scene: Scene, rank: int) -> None:
        self.scene, self.rank = scene, rank
        self.model = make_model(scene)
        self.ddp = DistributedDataParallel(self.model)
        self.ddp.register_comm_hook(None, lambda _state, bucket: self._exchange(bucket))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE)
        self.optimizer.register_step_post_hook(self._note_step)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE, growth_interval=1000)
        self.model.register_forward_pre_hook(self._note_region)
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
        weights = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        exchanges = self.exchanges + self.talk.numbers // self.numbers
        early = 0 < self.forwards_then < len(self.regions)
        seen = (exchanges, early, self.talk.barriers, self.steps, tuple(self.regions))
        plain = got is None or type(got) is bool
        return Step(
            weights, self.scaler.get_scale(), *seen, got if plain else Other(describe(got), kind(got))
        )

    def _exchange(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.exchanges += 1
        self.forwards_then = len(self.regions)
        by_hand = self.talk.numbers
        done = allreduce_hook(self.ddp.process_group, bucket)
        self.talk.numbers = by_hand
        return done

    def _note_step(self, *_: Any) -> None:
        self.steps += 1

    def _note_region(self, *_: Any) -> None:
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


class Faults(NamedTuple):
    """What somebody with a misconception does otherwise."""

    divisor: float | None = None  # of each loss; None: the number of micro-batches
    first: int = 0  # micro-batch that counts
    clears: bool = True
    unscales: bool = True  # and looks for infinities, as a scaler does


@functools.cache
def expected(scene: Scene, faults: Faults = Faults()) -> list[tuple[State, float]]:  # noqa: B008 (it cannot be changed)
    """Return weights and scale after each step, computed in one process from the batches of all ranks."""
    model = make_model(scene)
    scale, states = _SCALE, []
    for number in range(len(scene.plan)):
        gradients = _averaged(model, scene, number, scale, faults)
        finite = all(bool(each.isfinite().all()) for each in gradients)
        for each, gradient in zip(model.parameters(), gradients, strict=True):
            each.grad = gradient / scale if faults.unscales else gradient
            if finite or not faults.unscales:
                each.data -= _RATE * each.grad
        scale = scale if finite or not faults.unscales else scale / 2
        states.append(({name: each.detach().clone() for name, each in model.named_parameters()}, scale))
    return states


def _averaged(
    model: nn.Module, scene: Scene, number: int, scale: float, faults: Faults
) -> list[torch.Tensor]:
    """Return the scaled gradients of a step, averaged over the ranks."""
    before = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    of_ranks = []
    for rank in range(RANKS):
        for each, old in zip(model.parameters(), before, strict=True):
            each.grad = None if faults.clears or old is None else old.clone()
        for inputs, targets in scene.window(number, rank)[faults.first :]:
            with torch.autocast(
                "cpu", torch.float16, cache_enabled=False
            ):  # weights change in an outer region
                loss = mean_square(model(inputs), targets)
            (loss * (scale / (faults.divisor or scene.parts))).backward()  # type: ignore[no-untyped-call]
        of_ranks.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return [torch.stack(each).mean(dim=0) for each in zip(*of_ranks, strict=True)]
