"""Random training runs, the same for a learner's scaler and for PyTorch's, compared bit by bit."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l05.runs import scale_of

RUNS, _ITERATIONS = 6, 20
_SIZES = (4, 3, 2, 1)  # of the parameters of a model
_OPTIMIZERS = (
    lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01),
    lambda groups: torch.optim.Adam(groups, lr=0.02),
)


class Plan(NamedTuple):
    """What happens in one iteration, per optimizer: its inputs, or None if it is left out, and how it is clipped.

    `stops` says where nothing comes after that: its gradients are unscaled, and its step is left out.
    """

    inputs: tuple[tuple[torch.Tensor, ...] | None, ...]
    clips: tuple[str, ...]
    stops: tuple[bool, ...]


class Seen(NamedTuple):
    """What was there after one iteration. The gradients of a skipped step are unscaled ones, too."""

    scale: float
    stepped: tuple[bool, ...]
    grads: tuple[torch.Tensor | None, ...]
    weights: tuple[torch.Tensor, ...]


class _Model:
    """Four parameters in three groups, used in FP16, so that gradients overflow as they do in practice."""

    def __init__(self, number: int) -> None:
        draw = torch.Generator().manual_seed(number)
        self.weights = [torch.nn.Parameter(torch.randn(size, generator=draw)) for size in _SIZES]
        groups = [{"params": self.weights[:2]}, {"params": self.weights[2:3], "lr": 0.01}]
        groups.append({"params": self.weights[3:]})
        self.optimizer = _OPTIMIZERS[number % 2](groups)
        self.steps = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self.steps += 1

    def loss(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        pairs = zip(self.weights, inputs, strict=False)  # the last parameters are not always used
        return torch.stack([(weight.half() * x.half()).float().square().sum() for weight, x in pairs]).sum()


def compare_with_torch(ask: Ask) -> None:
    """Raise `Mistake` at the first iteration in which the two differ in any bit."""
    for number in range(RUNS):
        settings, plans = planned(number)
        scaler = ask(**settings)
        ask.call = f"{ask.in_words(**settings)} in a random run"
        got = ask.run(train, scaler, plans)
        want = train(torch.amp.GradScaler("cpu", **settings), plans)
        for iteration, (one, other) in enumerate(zip(got, want, strict=True), start=1):
            _compare(ask.call, iteration, one, other)


def planned(number: int) -> tuple[dict[str, Any], list[Plan]]:
    """Return the settings of a scaler and what happens in the run of this number, which has one to three optimizers."""
    chance = random.Random(number)
    settings = {
        "init_scale": 2.0 ** chance.randint(8, 20),
        "growth_factor": chance.choice((2.0, 4.0)),
        "backoff_factor": chance.choice((0.5, 0.25)),
        "growth_interval": chance.choice((1, 2, 3, 5)),
    }
    return settings, _plans(chance, optimizers=1 + number % 3)


def _plans(chance: random.Random, optimizers: int) -> list[Plan]:
    """Draw what happens; the smaller the inputs of a run are, the higher its scale will climb."""
    smallest = chance.choice((-16, -10, -6))

    def inputs(number: int) -> tuple[torch.Tensor, ...] | None:
        return None if number and chance.random() < 0.3 else _inputs(chance, smallest)

    def plan() -> Plan:
        clips = tuple(chance.choice(("", "", "look", "norm", "value")) for _ in range(optimizers))
        stops = tuple(bool(clip) and chance.random() < 0.3 for clip in clips)
        return Plan(tuple(inputs(number) for number in range(optimizers)), clips, stops)

    return [plan() for _ in range(_ITERATIONS)]


def _inputs(chance: random.Random, smallest: int) -> tuple[torch.Tensor, ...]:
    """Draw inputs of very different sizes, now and then one that no scale can save, and only two of them at times."""
    size = 2.0 ** chance.uniform(smallest, smallest + 8)
    inputs = [torch.tensor([chance.gauss(0, size) for _ in range(length)]) for length in _SIZES]
    if chance.random() < 0.05:
        inputs[chance.randrange(len(_SIZES))][0] = chance.choice((float("inf"), float("nan")))
    return tuple(inputs[: 2 if chance.random() < 0.2 else len(_SIZES)])


def train(scaler: Any, plans: list[Plan]) -> list[Seen]:
    """Let a scaler go through a run; the same plans make the same run, as far as the scaler decides nothing."""
    models = [_Model(number) for number in range(len(plans[0].inputs))]
    seen = []
    for plan in plans:
        before = [model.steps for model in models]
        for model, inputs in zip(models, plan.inputs, strict=True):
            model.optimizer.zero_grad()
            if inputs is not None:
                scaler.scale(model.loss(inputs)).backward()
        active = [
            (model, clip, stop) for model, x, clip, stop in zip(models, *plan, strict=True) if x is not None
        ]
        for model, clip, _ in active:
            _unscale_and_clip(scaler, model, clip)
        for model, _, stop in active:
            if not stop:
                scaler.step(model.optimizer)
        scaler.update()
        seen.append(_look(scaler, models, before))
    return seen


def _unscale_and_clip(scaler: Any, model: _Model, clip: str) -> None:
    if clip:
        scaler.unscale_(model.optimizer)
    there = [weight for weight in model.weights if weight.grad is not None]  # there may be none left to clip
    if clip == "norm" and there:
        torch.nn.utils.clip_grad_norm_(there, 1.0)
    if clip == "value" and there:
        torch.nn.utils.clip_grad_value_(there, 0.5)


def _look(scaler: Any, models: list[_Model], before: list[int]) -> Seen:
    stepped = tuple(model.steps > count for model, count in zip(models, before, strict=True))
    weights = [weight for model in models for weight in model.weights]
    return Seen(
        scale_of(scaler),
        stepped,
        tuple(None if each.grad is None else each.grad.detach().clone() for each in weights),
        tuple(weight.detach().clone() for weight in weights),
    )


def _compare(call: str, iteration: int, got: Seen, want: Seen) -> None:
    for what, one, other in (
        ("step made", got.stepped, want.stepped),
        ("gradient", got.grads, want.grads),
        ("weights", got.weights, want.weights),
        ("scale", got.scale, want.scale),
    ):
        if not expect.alike(one, other):
            shown = dict(zip(("got", "want"), map(describe, _first_unlike(one, other)), strict=True))
            raise Mistake("differs-from-torch", call=call, iteration=iteration, what=what, **shown)


def _first_unlike(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two things that differ, or the first two of many that do: all of them are too much for a sentence."""
    if not isinstance(one, tuple):
        return one, other
    return next(pair for pair in zip(one, other, strict=True) if not expect.alike(*pair))
