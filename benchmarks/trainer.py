"""A step of `amp_lab.Trainer` beside the same step in a loop written by hand, and beside other people's trainers.

All train three linear layers (batch 64, AdamW) on the same batches from a DataLoader, on one thread, in FP16 (with loss
scaling) and in BF16. Each has a copy of the same model, and after the run the losses of all must be the same in every
bit. accelerate is in BF16 alone on a CPU: asked for FP16 there, it computes in FP32.

| on in | by hand | Trainer | accelerate | Fabric | Lightning Trainer |
|---|---|---|---|---|---|
| autocast, batches moved to the device, AdamW | yes | yes | yes | yes | yes |
| loss scaling (FP16) | yes | yes | yes | yes | yes |
| clipping of the gradients' norm | yes | yes | yes | yes | yes |
| scheduler, every step | yes | yes | yes | yes | yes |
| which stands still if the scaler skips a step | yes | yes | yes | by hand | no |
| the loss read and tested for NaN in every step | yes | yes | by hand | by hand | by hand |
| a row of history for every step | yes | yes | by hand | by hand | by hand, without the norm |
| tqdm's bar, at most ten times a second | yes | yes | by hand | by hand | every 100 steps |

"By hand": the peer leaves that to its user, so it stands in the loop around it, as in ours by hand. Off everywhere:
validation, checkpoints, loggers, metrics, accumulation. What Lightning's Trainer has besides (callbacks, hooks,
profiler, signals) cannot be taken away; its own logger, checkpoints and summary are off.

How whole runs take turns, so that they can be timed step by step, stands in `benchmarks/training/turns.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator

import torch

from amp_lab.train.measure import Timings, compare, one_thread
from benchmarks.finding import Finding, against
from benchmarks.training.by_hand import by_hand
from benchmarks.training.ours import ours
from benchmarks.training.peers import Run, peers
from benchmarks.training.task import Task, batches
from benchmarks.training.turns import Turns

STEPS = 10  # in a turn; with 100 rounds, 1,000 of each way
UNTIMED = 3  # steps at the start of a turn: another loop's have filled the processor's caches
BAR = 1.05
HAND, OURS = "by hand", "amp_lab.Trainer"


def measure(quick: bool) -> list[Finding]:
    """Return our ratio to the loop by hand and to each peer, in FP16 and in BF16; with `quick` of few steps."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds, warm_up = (2, 1) if quick else (100, 5)
    found: list[Finding] = []
    with one_thread():
        for name, dtype in (("FP16", torch.float16), ("BF16", torch.bfloat16)):
            runs = {HAND: by_hand, OURS: ours, **_peers(dtype, device)}
            timings = _timings(runs, dtype, device, rounds, warm_up)
            print(f"  {name}, {STEPS} steps each time\n{timings}")
            found += _findings(timings, name)
    return found


def _peers(dtype: torch.dtype, device: str) -> dict[str, Run]:
    """Return the peers that can do this, with their versions; say which cannot."""
    runs: dict[str, Run] = {}
    for peer in peers():
        why_not = peer.why_not(dtype, device)
        if why_not:
            print(f"  {peer.name} is left out: {why_not}")
        else:
            runs[str(peer)] = peer.run
    return runs


def _timings(runs: dict[str, Run], dtype: torch.dtype, device: str, rounds: int, warm_up: int) -> Timings:
    data = batches()
    tasks = {name: Task(dtype, device) for name in runs}
    with _quiet():
        turns = {name: Turns(functools.partial(run, tasks[name]), data) for name, run in runs.items()}
        timings = compare(
            {name: functools.partial(each.take, STEPS) for name, each in turns.items()},
            baseline=HAND,
            rounds=rounds,
            warm_up=warm_up,
            prepare=lambda name: turns[name].take(UNTIMED),
        )
        for each in turns.values():
            each.close()
    _same_training(tasks)
    return timings


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let progress bars and warnings go nowhere."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _same_training(tasks: dict[str, Task]) -> None:
    """Make sure that all did the same work: every loss is the same in every bit.

    Raises:
        AssertionError: if one is not.
    """
    for name, task in tasks.items():
        # A loop may have taken more steps than another: the one that the others are compared with took twice as many.
        pairs = list(zip(tasks[HAND].losses, task.losses, strict=False))
        if not pairs:
            raise AssertionError(f"{name} has trained no step")
        for step, (theirs, mine) in enumerate(pairs):
            if theirs != mine:
                raise AssertionError(
                    f"{name} trains differently: loss {mine} in step {step}, by hand {theirs}"
                )


def _findings(timings: Timings, name: str) -> Iterator[Finding]:
    yield against(timings, OURS, f"{OURS} ÷ a loop by hand, a step in {name}", BAR)
    others = [way for way in timings.seconds if not way.startswith((HAND, OURS))]
    for way in others:
        yield against(timings, way, f"{way} ÷ a loop by hand, a step in {name}")
    for way in others:
        # No noise is granted: ours has to be below each.
        yield Finding(f"{OURS} ÷ {way}, a step in {name}", timings.median(OURS) / timings.median(way), 1.0)
