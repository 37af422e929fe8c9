"""A step of the DDP script, which is `amp_lab.Trainer` over DDP, beside a bare DDP loop with the same features.

Two processes (gloo, one thread each) train the script's model, 32 digits a batch and two batches a step. In both ways:

- autocast to FP16 or BF16, a loss scaler for FP16, AdamW;
- `no_sync` around forward and backward of all but the last batch of a step;
- the gradients' norm measured and clipped;
- one small all-reduce a step for the loss and the wish to stop; the loss tested for NaN;
- a row of history for every step, tqdm's bar on rank 0.

On each rank both ways take turns, in the same random order, and the losses must be the same in every bit. Off: the dev
set, checkpoints, schedule (the script's moves by epochs), dropout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader

from amp_lab.train.distributed.workers import Outcome, run_ranks
from amp_lab.train.measure import Timings, compare
from benchmarks.finding import Finding, against
from benchmarks.training.ddp import DdpTask, batches, by_hand, ours
from benchmarks.training.turns import Batch, Turns

RANKS, ACCUMULATE = 2, 2
STEPS = 10  # in a turn; with 400 rounds, 4,000 of each way: two processes on two cores are noisy
UNTIMED = 3  # steps at the start of a turn: the other loop's have filled the processor's caches
BAR = 1.05
HAND, OURS = "by hand", "the script's"
RUNS: dict[str, Callable[[DdpTask, DataLoader[Batch]], None]] = {HAND: by_hand, OURS: ours}


def measure(quick: bool) -> list[Finding]:
    """Return the script's ratio to the loop by hand, in FP16 and in BF16; with `quick` of few steps."""
    rounds, warm_up = (2, 1) if quick else (400, 5)
    found = []
    for name, dtype in (("FP16", torch.float16), ("BF16", torch.bfloat16)):
        outcomes = run_ranks(timings_of_one_rank, RANKS, dtype, rounds, warm_up, timeout=600)
        timings = _slower(outcomes)
        print(f"  {name}, {RANKS} ranks, {STEPS} steps each time\n{timings}")
        found.append(against(timings, OURS, f"a step of the DDP script ÷ a bare DDP loop's, {name}", BAR))
    return found


def _slower(outcomes: list[Outcome]) -> Timings:
    """Return the timings of the rank on which ours compares worse. They wait for each other: hardly any differ."""
    for each in outcomes:
        if each.ended != "returned":
            raise SystemExit(f"rank {each.rank} {each.ended}: {each.error}\n{each.traceback}")
    timings: list[Timings] = [each.value for each in outcomes]
    return max(timings, key=lambda each: each.ratio(OURS))


def timings_of_one_rank(rank: int, dtype: torch.dtype, rounds: int, warm_up: int) -> Timings:
    """Time both ways, on one of the ranks, while the others do the same."""
    tasks = {name: DdpTask(dtype, rank, ACCUMULATE) for name in RUNS}
    data = batches(rank)
    turns = {name: Turns(functools.partial(run, tasks[name]), data) for name, run in RUNS.items()}
    timings = compare(
        {name: functools.partial(each.take, STEPS * ACCUMULATE) for name, each in turns.items()},
        baseline=HAND,
        rounds=rounds,
        warm_up=warm_up,
        prepare=lambda name: turns[name].take(UNTIMED * ACCUMULATE),
    )
    for each in turns.values():
        each.close()
    same_training(tasks[HAND].losses, tasks[OURS].losses)
    return timings


def same_training(theirs: list[float], mine: list[float]) -> None:
    """Make sure that both did the same work; by hand took more steps, as it was timed twice.

    Raises:
        AssertionError: if a loss differs in a bit.
    """
    if not mine or mine != theirs[: len(mine)]:
        differ = [step for step, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a != b]
        raise AssertionError(
            f"{len(mine)} steps of ours, {len(theirs)} by hand; losses differ in {differ[:5]}"
        )
