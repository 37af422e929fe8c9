"""The ladder: the same training step in one precision after the other, measured side by side."""

from __future__ import annotations

import contextlib
import datetime
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from amp_lab.device import describe_device
from amp_lab.train.arguments import as_seed, as_size
from amp_lab.train.measuring.clocks import device_named
from amp_lab.train.measuring.rungs import Size, Way, first_step, kind, step_of, ways
from amp_lab.train.measuring.timing import Timings, compare
from amp_lab.train.precision import fp32_products

_SIZES = {"cpu": Size(128, 1, 4, 64), "cuda": Size(1024, 4, 16, 256)}
_ROUNDS = {"cpu": 10, "cuda": 20}
_WIDTH = 104  # letters; a notebook shows so many in a line


@dataclass(frozen=True)
class Rung:
    """One way to train, and how long a step takes.

    `detail`: how this device computes so. `seconds`: the median; `spread`: its quartiles. `speedup`: how many times as
    fast as FP32 with both TF32 switches off. Not measured: None, and `why_not` says why.
    """

    name: str
    detail: str
    seconds: float | None
    spread: tuple[float, float] | None
    speedup: float | None
    why_not: str = ""


@dataclass(frozen=True)
class Ladder:
    """What a device makes of each precision.

    `noise`: how far FP32 lies from itself in the same run, as a ratio. `date`: in ISO form.
    """

    device: str
    device_type: str
    date: str
    torch: str
    model: str
    rounds: int
    threads: int
    noise: float
    rungs: tuple[Rung, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Ladder:
        """Return what `as_dict` returned, read from JSON or not.

        Raises:
            ValueError: for anything else.
        """
        try:
            rungs = tuple(_stored_rung(each) for each in stored["rungs"])
            if not rungs:
                raise ValueError("it has no rungs")
            return cls(**{**stored, "rungs": rungs, "noise": float(stored["noise"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"this is no stored ladder, or one of another version: {error}") from error

    def __str__(self) -> str:
        head = [f"{self.device}, PyTorch {self.torch}, {self.date}", f"{self.model}; {self.rounds} rounds"]
        width = max(len(each.name) for each in self.rungs)
        titles = f"  {'':{width}}  {'median':>12}  {'half of them, ms':>16}  speed of FP32"
        rows = [_in_words(each, width) for each in self.rungs]
        return "\n".join([*head, titles, *rows, f"  FP32 against itself: ± {self.noise:.1%}"])

    def plot(self) -> Any:
        """Return a figure with one bar for each rung."""
        from amp_lab.view.ladder import ladder_bars  # matplotlib takes a second to import

        title = f"{self.device}, {self.date}: steps in the time of one in FP32"
        return ladder_bars(
            {each.name: each.speedup for each in self.rungs},
            {each.name: each.why_not for each in self.rungs if each.why_not},
            self.noise,
            title,
        )


def ladder(
    device: str | torch.device | None = None,
    *,
    width: int | None = None,
    depth: int | None = None,
    batch_size: int | None = None,
    tokens: int | None = None,
    rounds: int | None = None,
    compile: bool | None = None,
    seed: int = 0,
) -> Ladder:
    """Measure a training step in FP32, TF32, FP16 and BF16, with a fused optimizer, and compiled.

        print(ladder())

    A stack of `nn.TransformerEncoderLayer` makes whole steps: forward, backward, optimizer. All rungs are measured
    side by side, by `compare`. FP32 is really FP32: both TF32 switches are off, for all rungs but TF32; afterwards
    they are as they were. What the device lacks is not measured, and the rung says why. On a CPU, FP16 and BF16 are
    what that CPU makes of them, without any emulation: where it has no such units, slow.

    Args:
        device: None: CUDA if there is any, else the CPU.
        width, depth, batch_size, tokens: of the model and its batch; None: a size that suits the device. On a CPU that
            is a very small one, and takes some seconds.
        rounds: how often each rung is measured; None: 20 on CUDA, 10 on a CPU.
        compile: whether the last rung is compiled, which takes a minute; None: on CUDA.
        seed: of the weights and the batch.

    Raises:
        ValueError: for a size that is no whole number of at least 1, and a device that is not there.
    """
    at = device_named(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
    facts = describe_device(at).facts
    usual = _SIZES["cuda" if at.type == "cuda" else "cpu"]
    size = Size(
        _size("width", width, usual.width),
        _size("depth", depth, usual.depth),
        _size("batch_size", batch_size, usual.batch_size),
        _size("tokens", tokens, usual.tokens),
    )
    turns = _size("rounds", rounds, _ROUNDS["cuda" if at.type == "cuda" else "cpu"])
    every = ways(facts, at, compile)
    timings, failed = _measured(every, size, at, turns, as_seed("ladder", seed))
    return Ladder(
        device=facts.name,
        device_type=at.type,
        date=datetime.date.today().isoformat(),
        torch=torch.__version__,
        model=size.in_words,
        rounds=turns,
        threads=torch.get_num_threads(),
        noise=timings.noise,
        rungs=tuple(_rung(way, timings, failed, kind(facts, way.precision)) for way in every),
    )


def _measured(
    every: list[Way], size: Size, device: torch.device, rounds: int, seed: int
) -> tuple[Timings, dict[str, str]]:
    """Return the times of the ways that can be measured, and why others failed, by name."""
    steps: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    precisions = {way.name: way.precision for way in every}
    with _as_in_training(device), _switching() as switch:
        for way in every:
            if way.why_not:
                continue
            switch(way.precision)
            step, why = first_step(partial(step_of, way, size, device, seed))
            if step is None:
                failed[way.name] = why
            else:
                steps[way.name] = step
        if every[0].name not in steps:
            raise RuntimeError(f"not even a step in FP32 is possible: {failed[every[0].name]}")
        timings = compare(
            steps,
            baseline=every[0].name,
            rounds=rounds,
            warm_up=2,
            seed=seed,
            device=device,
            prepare=lambda name: switch(precisions[name]),
        )
    return timings, failed


@contextlib.contextmanager
def _as_in_training(device: torch.device) -> Iterator[None]:
    """Leave what the caller may be in: no_grad, inference mode, an autocast region, which would reach backward."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


@contextlib.contextmanager
def _switching() -> Iterator[Any]:
    """Yield what sets the switches of FP32 products for a precision; afterwards they are as they were."""
    with ExitStack() as stack:

        def switch(precision: str) -> None:
            stack.close()
            stack.enter_context(fp32_products("tf32" if precision == "tf32" else "fp32"))

        yield switch


def _stored_rung(stored: Mapping[str, Any]) -> Rung:
    numbers: dict[str, Any] = dict.fromkeys(("seconds", "speedup", "spread"))
    if any(stored[name] is not None for name in numbers):
        first, third = stored["spread"]
        numbers = {name: float(stored[name]) for name in ("seconds", "speedup")}
        numbers["spread"] = float(first), float(third)
    return Rung(**{**stored, **numbers})


def _rung(way: Way, timings: Timings, failed: Mapping[str, str], detail: str) -> Rung:
    why_not = way.why_not or failed.get(way.name, "")
    if why_not:
        return Rung(way.name, detail, None, None, None, why_not)
    return Rung(
        way.name, detail, timings.median(way.name), timings.spread(way.name), 1 / timings.ratio(way.name)
    )


def _size(name: str, given: int | None, usual: int) -> int:
    return usual if given is None else as_size("ladder", name, given)


def _in_words(rung: Rung, width: int) -> str:
    name = f"  {rung.name:{width}}  "
    if rung.seconds is None or rung.speedup is None or rung.spread is None:
        reason = f"not measured: {rung.why_not}"
        return textwrap.fill(reason, _WIDTH, initial_indent=name, subsequent_indent=" " * len(name))
    first, third = (1e3 * each for each in rung.spread)
    half = f"{first:.4g} to {third:.4g}"
    return f"{name}{1e3 * rung.seconds:9.3f} ms  {half:>16}  {rung.speedup:5.2f} ×  {rung.detail}"
