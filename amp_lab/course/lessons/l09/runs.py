"""Trainings that put somebody's `train_step` to the test: which precision, which micro-batches, what happens when."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, StepLR

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IN, HIDDEN, OUT = 8, 6, 3
_DTYPES = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
# An error that large in the targets: its square is nothing for FP32, its gradient, times the scale, too much for FP16.
_FAR, _TOO_FAR = 1e6, 1e25  # the square of the second is too much for FP32 as well
_HAPPENS = {
    "o": ", whose gradients overflow",
    "g": ", where one number of one gradient is infinite",
    "n": ", where the loss of the last micro-batch is NaN",
    "i": ", where the loss of the first micro-batch is infinite",
}

Batch = tuple[torch.Tensor, torch.Tensor]
State = dict[str, torch.Tensor]  # numbers by name, in the order in which a difference is told


class Scene(NamedTuple):
    """One training. `plan` has a letter for each step: `c` for a clean one, `o` where the gradients overflow, `g` where
    one number of one gradient is infinite, `n` and `i` where the loss of one micro-batch is NaN or infinite.
    """

    plan: str
    precision: Literal["FP32", "FP16", "BF16"] = "FP32"
    sizes: tuple[int, ...] = (3, 3)
    max_norm: float = 1000.0
    interval: int = 1000  # clean steps after which the scale grows
    fused: bool = False
    warm_up: bool = False  # the learning rate begins at 0
    stale: float | None = None  # what `.grad` is full of at first
    seed: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the learner's function is given."""
        return _DTYPES[self.precision]

    @property
    def words(self) -> str:
        """What a sentence says of it."""
        has = [
            self.precision,
            f"micro-batches of {', '.join(map(str, self.sizes))}",
            f"`max_norm={self.max_norm:g}`",
        ]
        has += [f"`growth_interval={self.interval}`"] if self.interval < 1000 else []
        has += ["fused SGD"] if self.fused else []
        has += ["a learning rate that begins at 0"] if self.warm_up else []
        has += [] if self.stale is None else [f"`.grad` full of {self.stale} before the first step"]
        return ", ".join(has)

    def call(self, step: int) -> str:
        """Return in words which call of the learner's function this is."""
        return f"`train_step` in step {step + 1}{_HAPPENS.get(self.plan[step], '')} ({self.words})"

    def window(self, step: int) -> list[Batch]:
        """Make the micro-batches of a step, counted from 0."""
        draw = torch.Generator().manual_seed(1000 * self.seed + step)
        inputs = torch.randn(sum(self.sizes), IN, generator=draw)
        targets = 2 * torch.randn(sum(self.sizes), OUT, generator=draw)
        letter = self.plan[step]
        if letter == "o":
            targets += _FAR
        if letter == "n":
            inputs[-1, 0] = torch.nan
        if letter == "i":
            targets[0] = _TOO_FAR
        ends = [sum(self.sizes[:number]) for number in range(len(self.sizes) + 1)]
        inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
        return [(inputs[first:last].clone(), targets[first:last].clone()) for first, last in pairwise(ends)]


class Event(NamedTuple):
    """A forward or a backward pass of the model. `autocast` is the dtype in force; None where it is off."""

    name: Literal["forward", "backward"]
    size: int
    autocast: torch.dtype | None = None
    training: bool = True


class Bench:
    """All that one scene needs, fresh, and what the model was asked for: `events`."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.events: list[Event] = []
        self._spoils = False
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(scene.seed + 7)  # the CPU's: nobody puts a GPU's back
            self.net = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT)).to(DEVICE)
        self.net.register_forward_hook(self._note)
        self.net[2].weight.register_hook(self._spoil)  # type: ignore[operator]
        fused = True if scene.fused else None
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, fused=fused)
        self.scheduler: LRScheduler = StepLR(self.optimizer, step_size=1, gamma=0.8)
        if scene.warm_up:
            self.scheduler = LambdaLR(self.optimizer, lambda step: step / 2)
        enabled = scene.precision == "FP16"
        self.scaler = torch.amp.GradScaler(
            DEVICE.type, init_scale=2.0**10, growth_interval=scene.interval, enabled=enabled
        )
        if scene.stale is not None:
            for each in self.net.parameters():
                each.grad = torch.full_like(each, scene.stale)

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step, counted from 0."""
        scene = self.scene
        self._spoils = scene.plan[step] == "g"
        objects = (self.net, self.optimizer, self.scaler, self.scheduler)
        return (*objects, mean_square, scene.window(step), scene.dtype, scene.max_norm)

    def state(self) -> State:
        """Return copies of all that a step may change."""
        names = {each: name for name, each in self.net.named_parameters()}
        tensors = {f"model.{name}": value.detach().clone() for name, value in self.net.state_dict().items()}
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        numbers = {
            "the scale": self.scaler.get_scale(),
            "the learning rate": rates[0] if rates else torch.nan,
            "scheduler.last_epoch": self.scheduler.last_epoch,
            "the scaler's count of clean steps": self.scaler.state_dict().get("_growth_tracker", 0),
        }
        tensors |= {name: torch.tensor(float(value), dtype=torch.float64) for name, value in numbers.items()}
        for each, name in names.items():
            momentum = self.optimizer.state.get(each, {}).get("momentum_buffer")
            # Fused SGD makes its momenta in a skipped step, others do not: none is as good as zeros.
            kept = torch.zeros_like(each) if momentum is None else momentum
            tensors[f"the momentum of model.{name}"] = kept.detach().clone()
        return tensors

    def _note(self, _module: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        kind, size = DEVICE.type, len(inputs[0])
        on = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if on else None
        self.events.append(Event("forward", size, dtype, self.net.training))
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.events.append(Event("backward", size)))  # type: ignore[no-untyped-call]

    def _spoil(self, grad: torch.Tensor) -> torch.Tensor | None:
        if not self._spoils:
            return None
        grad = grad.clone()
        grad[-1, -1] = torch.inf
        return grad


def mean_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the error in FP32, as the loss functions of autocast do."""
    return (outputs.float() - targets).square().mean()


def difference(got: State, want: State, start: State, rtol: float) -> dict[str, str] | None:
    """Return the first thing that is not as it should be: `place`, `got` and `want` in words; or None.

    Numbers may be off by `rtol` of how far the largest in their tensor has moved since `start`.
    """
    for name, right in want.items():
        mine = got.get(name)
        if mine is None or mine.shape != right.shape:
            return {"place": name, "got": "not there any more", "want": "there"}
        mine, right = mine.double(), right.double()
        moved = (right - start[name].double()).abs().max()
        near = ((mine - right).abs() <= rtol * moved + 1e-6 * right.abs()) | (mine == right)
        near |= mine.isnan() & right.isnan()
        if not near.all():
            worst = int((mine - right).abs().nan_to_num(nan=torch.inf).masked_fill(near, -1).argmax())
            index = tuple(int(each) for each in torch.unravel_index(torch.tensor(worst), right.shape))
            where = f"[{', '.join(map(str, index))}]" if index else ""
            place = f"`{name}{where}`" if "model." in name and "the" not in name else f"{name}{where}"
            return {"place": place, "got": f"{float(mine[index]):.6g}", "want": f"{float(right[index]):.6g}"}
    return None


@functools.cache
def scenes() -> tuple[Scene, ...]:
    """Return all scenes: the plainest first, so that a fault shows where nothing else happens."""
    tight = 0.5
    return (
        Scene("ccc"),
        Scene("ccc", stale=500.0),
        Scene("ccc", sizes=(4, 1), seed=1),
        Scene("ccc", sizes=(3, 3, 1), max_norm=tight, seed=2),
        Scene("ccc", "BF16", sizes=(2, 5), max_norm=tight, seed=3),
        Scene("ccc", "FP16", sizes=(4, 3, 1), seed=4),
        Scene("ccc", "FP16", sizes=(4, 3, 1), max_norm=tight, seed=5),
        Scene("ccocc", "FP16", sizes=(4, 2), max_norm=tight, seed=6),
        Scene("cccc", "FP16", sizes=(2, 2, 2), interval=2, seed=7),
        Scene("cgocc", "FP16", sizes=(5,), seed=8),
        Scene("cncic", "FP32", sizes=(3, 2), seed=9),
        Scene("cncic", "FP16", sizes=(3, 2), max_norm=tight, seed=10),
        Scene("cgc", "BF16", sizes=(2, 2), max_norm=tight, seed=11),
        Scene("cgngc", "FP32", sizes=(1, 3, 2), seed=12),
        Scene("occoic", "FP16", sizes=(2, 3), interval=1, seed=13),
        Scene("ccoc", "FP16", sizes=(3, 3), fused=True, seed=14),
        Scene("ccoc", "FP16", sizes=(3, 3), warm_up=True, seed=15),
    )
