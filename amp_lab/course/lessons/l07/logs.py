"""The six logs of exercise 7.8: small loops, each with one fault or none, that really ran; drawn, and as a table.

All train the same network on the same batches, with SGD and a learning rate that falls step by step. What they write
down is what people write down: the loss, the loss scale, the norm of the gradients before clipping, the learning rate,
and whether the step was skipped.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.nn.utils import clip_grad_norm_

from amp_lab.view.lettering import GRID
from amp_lab.view.plots import COLOURS

FAULTS = {
    "p": "Gradients are clipped before they are unscaled.",
    "q": "`zero_grad` is left out after a skipped step.",
    "r": "`scaler.update()` is never called.",
    "s": "The scheduler steps in every iteration, skipped ones included.",
    "t": "The run was resumed from a checkpoint without the scaler.",
    "u": "The forward pass itself overflows, from some step on.",
    "v": "No loss scaling: FP16 loses the small gradients.",
    "w": "Nothing: this run is healthy.",
}
STEPS = 60
_SIZE = 16.0  # multiplies the loss: at the scale that every GradScaler begins with, gradients overflow
_INTERVAL = 16
_MAX_NORM = 100.0
_RATE, _DECAY = 1e-2, 0.95
_DATA_BREAKS_AT, _RESUMED_AT = 24, 36


class Entry(NamedTuple):
    """One line of a log. `norm` is that of the gradients before clipping, as the loop has it at hand."""

    step: int
    loss: float
    scale: float
    norm: float
    rate: float
    skipped: bool


class _Plan(NamedTuple):
    """One run: its fault, a letter of `FAULTS`, and the scale with which it begins."""

    fault: str
    init_scale: float


_RUNS = {
    "A": _Plan("w", 2.0**20),
    "B": _Plan("q", 2.0**12),
    "C": _Plan("p", 2.0**8),
    "D": _Plan("u", 2.0**10),
    "E": _Plan("s", 2.0**20),
    "F": _Plan("t", 2.0**10),
}
# The right answer; two of the faults have no run.
TRUTH = {letter: plan.fault for letter, plan in _RUNS.items()}
Log = tuple[Entry, ...]


@functools.cache
def logs() -> dict[str, Log]:
    """Let all six loops run, once in a process, and return what they wrote down."""
    with torch.random.fork_rng(devices=[]):
        return {letter: _run(plan) for letter, plan in _RUNS.items()}


def _run(plan: _Plan) -> Log:
    """Train with the fault of `plan`, on the CPU."""
    fault = plan.fault
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    teacher = torch.randn(16, 4) / 2
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, _DECAY)
    scaler = _scaler(plan.init_scale)
    log: list[Entry] = []
    skipped = False
    for step in range(STEPS):
        inputs = torch.randn(32, 16)
        targets = inputs @ teacher
        if fault == "u" and step >= _DATA_BREAKS_AT:
            inputs = inputs * 60000  # somebody has forgotten to normalise the rest of the data
        if fault == "t" and step == _RESUMED_AT:
            scaler = _scaler(2.0**16)
        if not (fault == "q" and skipped):
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        loss = _SIZE * (outputs.float() - targets).square().mean()
        scaler.scale(loss).backward()
        if fault != "p":
            scaler.unscale_(optimizer)
        norm = float(clip_grad_norm_(model.parameters(), _MAX_NORM))
        scale, rate = scaler.get_scale(), float(scheduler.get_last_lr()[0])
        scaler.step(optimizer)
        scaler.update()
        skipped = scaler.get_scale() < scale
        if not skipped or fault == "s":
            optimizer._opt_called = True  # type: ignore[attr-defined]  # or PyTorch warns of the fault in "s"
            scheduler.step()
        log.append(Entry(step, float(loss.detach()), scale, norm, rate, skipped))
    return tuple(log)


def _scaler(init_scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=_INTERVAL)


def log_table(run: str, every: int = 1) -> str:
    """Return the log of a run as text, one line for each step, or for each `every`-th."""
    lines = ["step       loss        scale  gradient norm  learning rate"]
    for entry in logs()[run][::every]:
        power = f"2^{math.log2(entry.scale):.0f}" if entry.scale else "0"
        numbers = f"{entry.step:4d} {entry.loss:10.4g} {power:>12} {entry.norm:14.4g} {entry.rate:14.3g}"
        lines.append(numbers + ("  skipped" if entry.skipped else ""))
    return "\n".join(lines)


def fault_list() -> str:
    """Return the faults as a list in Markdown."""
    return "\n".join(f"- **{letter}**: {words}" for letter, words in FAULTS.items())


_ROWS = (
    ("loss", "loss"),
    ("scale", "loss scale"),
    ("norm", "gradient norm\nbefore clipping"),
    ("rate", "learning rate"),
)


def draw_logs(run: str | None = None) -> Figure:
    """Draw all logs side by side, one row for each quantity; or one run alone, larger.

    Crosses are skipped steps. Where a number is infinite or NaN, the curve has a gap.
    """
    chosen = [run] if run else [*_RUNS]
    size = (5.0, 7.0) if run else (12.0, 7.0)
    figure, grid = plt.subplots(
        len(_ROWS), len(chosen), figsize=size, sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    for column, letter in enumerate(chosen):
        grid[0, column].set_title(f"run {letter}", fontsize=11)
        for row, (name, words) in enumerate(_ROWS):
            _draw(grid[row, column], logs()[letter], name)
            if column == 0:
                grid[row, column].set_ylabel(words)
        grid[-1, column].set_xlabel("step")
    return figure


def _draw(axes: Axes, log: Log, name: str) -> None:
    values = [float(getattr(entry, name)) for entry in log]
    shown = [value if math.isfinite(value) and value > 0 else math.nan for value in values]
    axes.plot(shown, color=COLOURS["blue"], linewidth=1.4, marker=".", markersize=2.5)
    skipped = [(entry.step, shown[entry.step]) for entry in log if entry.skipped]
    style: dict[str, Any] = {"color": COLOURS["orange"], "marker": "x", "markersize": 4, "clip_on": False}
    for step, value in skipped:
        if math.isnan(value):  # a gap has its cross at the lower edge
            axes.plot([step], [0.03], transform=axes.get_xaxis_transform(), **style)
        else:
            axes.plot([step], [value], **style)
    axes.set_yscale("log", base=2 if name == "scale" else 10)
    axes.grid(**GRID)
