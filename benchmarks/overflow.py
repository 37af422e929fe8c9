"""What `watch(..., replay=closure)` costs while nothing overflows, and how long an explanation takes once it does.

(a) The FP16 step of the small transformers in `benchmarks.watching`, alone and under a watch that was given `replay`.
Nothing overflows, so nothing is replayed: the ratio is what it costs to be ready. The baseline is timed against itself
in the same rounds.

(b) One batch that overflows, in the logits of the same model, is explained by `find_overflow`, and run under
transformers' DebugUnderflowOverflow, which looks at what goes in and out of every module, and raises at the first
infinity or NaN. Seconds, and what each of them names. The two do not do the same work: one runs the batch several
times, and forward and backward operator by operator; the other runs it forward once, and watches modules only.
"""

from __future__ import annotations

import contextlib
import copy
import io
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import amp_lab
from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.train.measure import Timings, compare
from amp_lab.watching.overflow import find_overflow
from benchmarks.finding import Finding, against
from benchmarks.watching import (
    BAR,
    BATCH,
    PEER,
    SMALL,
    STEPS,
    TINY,
    WORDS,
    Loop,
    Size,
    Transformer,
    load_peer,
)

TRIES = 7  # of each explanation; the median counts


def measure(quick: bool) -> list[Finding]:
    """Return the cost of a watch with a replay, and the seconds of one explanation by each tool."""
    rounds, warm_up = (2, 1) if quick else (120, 2)
    found = []
    for name, size, count in (("tiny", TINY, STEPS), ("small", SMALL, 2)):  # FP16 is slow on most CPUs
        timings = _timings(size, count, rounds, warm_up)
        print(
            f"  FP16, {name}: {size.layers} layers of width {size.width}, {count} steps each time\n{timings}"
        )
        what = f"watch(..., replay=closure) ÷ nothing, a {name} step in FP16"
        found.append(against(timings, "watched", what, BAR))
    return found + _explanations(1 if quick else TRIES)


def _timings(size: Size, count: int, rounds: int, warm_up: int) -> Timings:
    alone, watched = Loop(torch.float16, size), Loop(torch.float16, size)

    def replay() -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return _loss(watched.model(watched.tokens[:, :-1]), watched.tokens[:, 1:])

    seen = amp_lab.watch(watched.model, watched.optimizer, watched.scaler, replay=replay)
    steps = {"alone": alone.step, "watched": watched.step}

    def prepare(way: str) -> None:
        seen.stop()
        if way == "watched":
            seen.start()
        steps[way]()

    def repeated(way: str) -> None:
        for _ in range(count):
            steps[way]()

    ways = {"alone": lambda: repeated("alone"), "watched": lambda: repeated("watched")}
    timings = compare(ways, baseline="alone", rounds=rounds, warm_up=warm_up, prepare=prepare)
    seen.stop()
    if list(seen.report()):
        raise AssertionError(f"nothing is wrong with the step, but the watcher says:\n{seen.report()}")
    return timings


def _loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def _faulty() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A transformer whose second layer overflows in its first linear layer, and a batch."""
    torch.manual_seed(0)
    model = Transformer(TINY)
    weight = model.get_parameter("layers.layers.1.linear1.weight")
    with torch.no_grad():
        weight.mul_(0.0).add_(torch.randn_like(weight), alpha=10_000.0)
    tokens = torch.randint(0, WORDS, (BATCH, TINY.tokens + 1))
    return model, (tokens[:, :-1], tokens[:, 1:])


def _explanations(tries: int) -> list[Finding]:
    model, batch = _faulty()
    seconds, answer = [], ""
    for _ in range(tries):
        start = time.perf_counter()
        report = find_overflow(model, _loss, batch, device_type="cuda")
        seconds.append(time.perf_counter() - start)
        cure = f"scale {report.scale:g} cures it" if report.scale else "no scale cures it"
        answer = f"{report.cause}: {report.op} in {report.module!r}, {report.phase}; {cure}"
    print(f"  find_overflow names: {answer}")
    if (report.op, report.module) != ("linear", "layers.layers.1.linear1"):
        raise AssertionError(f"that is not where the overflow was planted:\n{report}")
    found = [Finding("find_overflow, one explanation", statistics.median(seconds), unit="s")]
    return found + _by_the_peer(model, batch, tries)


def _by_the_peer(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], tries: int) -> list[Finding]:
    peer = load_peer()
    if peer is None:
        return []
    seconds, said = [], ""
    for _ in range(tries):
        each, printed = copy.deepcopy(model), io.StringIO()
        start = time.perf_counter()
        with contextlib.redirect_stdout(printed), cuda_autocast(), torch.autocast("cpu", torch.float16):
            peer(each)
            try:
                _loss(each(batch[0]), batch[1])
            except ValueError as error:
                said = f"{error}".splitlines()[0]
        seconds.append(time.perf_counter() - start)
    last = [line.strip() for line in printed.getvalue().splitlines() if line.strip()][-6:]
    print(f"  {PEER} raises: {said or 'nothing'}\n    and prints last:", *last, sep="\n      ")
    print("    It names no direction and no cure.")
    return [Finding(f"{PEER}, until it raises", statistics.median(seconds), unit="s")]
