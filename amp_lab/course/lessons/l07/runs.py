"""The six logs of exercise 7.8: small loops, each with one fault or none, that really ran.

All train the same network on the same batches, with SGD and a learning rate that falls step by step. What they write
down is what people write down: the loss, the loss scale, the norm of the gradients before clipping, the learning rate,
and whether the step was skipped.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

FAULTS = {
    "p": "Gradients are clipped before they are unscaled.",
    "q": "`zero_grad` is left out after a skipped step.",
    "r": "The growth interval is 1: the scale grows in every step that is not skipped.",
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
_DATA_BREAKS_AT, _RESUMED_AT = 25, 37


class Entry(NamedTuple):
    """One line of a log. `norm` is that of the gradients before clipping, as the loop has it at hand."""

    step: int  # counted from 1
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
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PyTorch tells of the fault in one of the loops, and of none of the others.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler", UserWarning)
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
    for step in range(1, STEPS + 1):
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
            scheduler.step()
        log.append(Entry(step, float(loss.detach()), scale, norm, rate, skipped))
    return tuple(log)


def _scaler(init_scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=_INTERVAL)


def log_of(run: str) -> Log:
    """Return the log of a run.

    Raises:
        ValueError: for what is not the letter of a run.
    """
    if run not in _RUNS:
        raise ValueError(f"there is no run {run!r}: the runs are {', '.join(_RUNS)}")
    return logs()[run]
