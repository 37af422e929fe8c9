"""A training that puts somebody's loop to the test: which model, optimizer and scaler, and what happens when."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch

from amp_lab.course.lessons.l07.nets import IN, OUT, Call, Kind, Net
from amp_lab.scaling.dynamic import DynamicLossScaler

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Without a GPU, torch.manual_seed writes down each time where it was called, which takes longer than a small step.
seed_all = torch.manual_seed if DEVICE.type == "cuda" else torch.default_generator.manual_seed
EXAMPLES = 6
# An error that large in the targets: its square is nothing for FP32, its gradient too much for FP16.
_FAR = 1e6
_TOO_FAR = 1e25  # its square is too much for FP32 as well
# What the letters of a plan say of a step, in a sentence.
_HAPPENS = {
    "o": ", whose gradients overflow",
    "n": ", whose inputs hold a NaN",
    "i": ", whose loss is infinite",
    "f": ", where one number of one gradient is infinite",
    "g": ", where one number of one gradient is NaN",
    "l": ", where the last micro-batch overflows",
    "e": ", where the encoder's gradients overflow",
    "h": ", where the head's gradients overflow",
    "b": ", where the gradients of both overflow",
}
_STEPS = (torch.amp.GradScaler.step.__code__, DynamicLossScaler.step.__code__)
OptimizerKind = Literal["SGD", "Adam", "fused SGD", "fused Adam"]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Scene(NamedTuple):
    """One training. `plan` has a letter for each step: `c` for clean, `o` for one whose gradients overflow, `n` for one
    with a NaN among its inputs, `i` for one whose loss is infinite.

    `size` multiplies the loss, and divides the learning rate. `stale` is what `.grad` is full of at first.
    """

    plan: str
    scale: float = 2.0**10
    optimizer: OptimizerKind = "SGD"
    net: Kind = "plain"
    ours: bool = False
    interval: int = 1000
    size: float = 1.0
    stale: float | None = None
    examples: int = EXAMPLES
    seed: int = 0

    @property
    def words(self) -> str:
        """What a sentence says of it."""
        has: list[str] = [self.optimizer]
        has += [] if self.net == "plain" else [self.net]
        has += ["a small loss"] if self.size < 1 else []
        has += ["`DynamicLossScaler`"] if self.ours else []
        has += [f"`growth_interval={self.interval}`"] if self.interval < 1000 else []
        has += [] if self.stale is None else [f"`.grad` full of {self.stale} before the first step"]
        return ", ".join(has)

    def happens(self, step: int) -> str:
        """Return what is special about a step, counted from 0, to be said behind its number."""
        return _HAPPENS.get(self.plan[step], "")

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make inputs and targets of a step, counted from 0."""
        draw = torch.Generator().manual_seed(1000 * self.seed + step)
        inputs = torch.randn(self.examples, IN, generator=draw)
        targets = 2 * torch.randn(self.examples, OUT, generator=draw)
        if self.plan[step] == "o":
            targets += _FAR
        if self.plan[step] == "n":
            inputs[0, 0] = torch.nan
        if self.plan[step] == "i":
            targets[-1] = _TOO_FAR
        return inputs.to(DEVICE), targets.to(DEVICE)

    def loss_function(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean square of the error, times `size`, in FP32."""
        return self.size * (outputs.float() - targets).square().mean()

    def rate(self) -> float:
        """Return the learning rate: weights move by some percent in each step."""
        return 0.02 if "Adam" in self.optimizer else 0.05 / self.size


class Bench:
    """All that one scene needs, fresh, and what is done to it: `calls`."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.calls: list[Call] = []
        self.net = make_net(self.calls, scene.net, scene.seed)
        self.optimizer = make_optimizer(scene, self.net, self.calls)
        self.scaler = make_scaler(scene, self.calls)
        if scene.stale is not None:
            for each in self.net.parameters():
                each.grad = torch.full_like(each, scene.stale)

    @property
    def models(self) -> list[Net]:
        """All networks."""
        return [self.net]

    @property
    def all_optimizers(self) -> list[torch.optim.Optimizer]:
        """An optimizer for each network."""
        return [self.optimizer]

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step, counted from 0."""
        inputs, targets = self.scene.batch(step)
        return (self.net, self.optimizer, self.scaler, self.scene.loss_function, inputs, targets)

    def state(self) -> State:
        """Return copies of what the loop is about."""
        return read_state(self.models, self.all_optimizers, self.scaler)


class State(NamedTuple):
    """Weights and what the optimizers keep, by name, and the scale."""

    tensors: dict[str, torch.Tensor]
    scale: float
    clean_steps: int


def read_state(nets: list[Net], optimizers: list[torch.optim.Optimizer], scaler: Any) -> State:
    """Return copies of weights, buffers, momenta and of the scale with its count of clean steps."""
    names = ("model",) if len(nets) == 1 else ("encoder", "head")
    tensors: dict[str, torch.Tensor] = {}
    for name, net in zip(names, nets, strict=True):
        tensors |= {f"{name}.{key}": value.detach().clone() for key, value in net.state_dict().items()}
    for name, net, optimizer in zip(names, nets, optimizers, strict=True):
        rates = [group["lr"] for group in optimizer.param_groups]
        tensors[f"learning rate of {name}"] = torch.tensor(rates, dtype=torch.float64)
        tensors[f"training mode of {name}"] = torch.tensor(float(net.training))
        for key, each in net.named_parameters():
            kept = optimizer.state.get(each, {})
            tensors |= {
                f"{kind} of {name}.{key}": value.detach().clone()
                for kind, value in kept.items()
                if isinstance(value, torch.Tensor)
            }
    saved = scaler.state_dict()
    return State(tensors, scaler.get_scale(), saved.get("_growth_tracker", 0))


def make_net(
    calls: list[Call], kind: Kind, seed: int, features: int = IN, outputs: int = OUT, number: int = 0
) -> Net:
    """Make a network with the weights that belong to `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + 7)  # the CPU's: nobody puts a GPU's back
        return Net(calls, kind, features, outputs, number).to(DEVICE)


def make_optimizer(scene: Scene, net: Net, calls: list[Call], number: int = 0) -> torch.optim.Optimizer:
    """Make the optimizer of a network; it notes what is asked of it."""
    kinds: dict[str, Any] = {
        "SGD": functools.partial(torch.optim.SGD, momentum=0.9),
        "fused SGD": functools.partial(torch.optim.SGD, momentum=0.9, fused=True),
        "Adam": torch.optim.Adam,
        "fused Adam": functools.partial(torch.optim.Adam, fused=True),
    }
    optimizer: Any = kinds[scene.optimizer](net.parameters(), lr=scene.rate())

    def zero_grad(set_to_none: bool = True) -> None:
        calls.append(Call("zero", None, number))
        type(optimizer).zero_grad(optimizer, set_to_none)

    optimizer.zero_grad = zero_grad
    optimizer.register_step_pre_hook(lambda *_: calls.append(Call(_who_runs(calls), None, number)))
    optimizer.number = number
    return optimizer  # type: ignore[no-any-return]


def _who_runs(calls: list[Call]) -> str:
    """Return "runs" for a step of the scaler that notes its calls in `calls`, or of nobody; "other" for another one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _STEPS and getattr(frame.f_locals.get("self"), "calls", None) is not calls:
            return "other"
        frame = frame.f_back
    return "runs"


def make_scaler(scene: Scene, calls: list[Call]) -> Any:
    """Make a scaler that notes what is asked of it."""
    if scene.ours:
        scaler = _noting(DynamicLossScaler)(scene.scale, growth_interval=scene.interval)
    else:
        kind = _noting(torch.amp.GradScaler)
        scaler = kind(DEVICE.type, init_scale=scene.scale, growth_interval=scene.interval)
    scaler.calls = calls
    return scaler


@functools.cache
def _noting(kind: Any) -> Any:
    """Return a class of scalers that does what `kind` does, and adds it to `self.calls`."""

    class Noting(kind):  # type: ignore[misc]
        calls: list[Call]

        def scale(self, outputs: Any) -> Any:
            self.calls.append(Call("scale"))
            return super().scale(outputs)

        def unscale_(self, optimizer: Any) -> Any:
            if not self.calls or self.calls[-1].name != "step":  # which unscales by itself, if nobody did
                self.calls.append(Call("unscale", None, _number(optimizer)))
            return super().unscale_(optimizer)

        def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append(Call("step", None, _number(optimizer)))
            try:
                return super().step(optimizer, *args, **kwargs)
            finally:
                self.calls.append(Call("stepped", None, _number(optimizer)))

        def update(self, new_scale: Any = None) -> Any:
            self.calls += [Call("update")] if new_scale is None else [Call("set"), Call("update")]
            return super().update(new_scale)

    Noting.__name__ = Noting.__qualname__ = kind.__name__
    return Noting


def _number(optimizer: Any) -> int:
    """Return which optimizer this is; what is none is left to the scaler, which says so."""
    return getattr(optimizer, "number", 0)
