"""Exercise 10.1: the script that torchrun starts on each rank."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import NotHere, checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.judging.launched import available
from amp_lab.course.judging.staging import Report
from amp_lab.course.lessons.l10.comparing import difference, hardly_moved
from amp_lab.course.lessons.l10.noting import FixedPort, Seen
from amp_lab.course.lessons.l10.rehearsal import BATCH, EPOCHS, RANKS, RATE, SAMPLES, make_model, play
from amp_lab.course.lessons.l10.replaying import MISCONCEPTIONS, replay
from amp_lab.course.lessons.l10.saving import judge_end, judge_file, listed
from amp_lab.course.lessons.l10.stepping import NOT_HERE, UNSCALED, how_it_ended

_SHARE = -(-SAMPLES // RANKS)  # of a rank in an epoch, filled up
_RTOL = 2e-3  # FP16 rounds, and right scripts round in different places
# What a scaler says, and what it means here: diagnosis and what should be.
_ERRORS = dict.fromkeys(UNSCALED, ("unscaled", "")) | {
    "No inf checks were recorded for this optimizer": ("no-gradients", ""),
    "No inf checks were recorded prior to update": ("no-step", ""),
    "step() has already been called since the last update()": ("no-update", "one update after each step"),
    "Attempting to unscale FP16 gradients": ("half-weights", ""),
}


@checker("10.1")
def train(ask: Ask) -> None:
    """Run the file once on two ranks, then look at what was seen of each, from the first line to the last."""
    if not available():
        raise NotHere(NOT_HERE)
    path = Path(ask.answer)
    code = path.read_text(encoding="utf-8-sig", errors="replace")
    ask.call = f"`{path.name}`"
    _compile(ask, code, str(path.resolve()))
    ask.call = f"`train(…, epochs={EPOCHS}, batch_size={BATCH})` on {RANKS} ranks"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.pt")
        reports = _rehearse(ask, code, str(path.resolve()), file)
        seen = [report.seen["script"] for report in reports]
        _judge_training(ask.call, seen)
        judge_file(ask.call, seen, file)
    judge_end(ask.call, seen)


def _compile(ask: Ask, code: str, filename: str) -> None:
    """Let a file that is no Python be told of with its line."""
    ask.run(compile, code, filename, "exec")
    ask.returned = False  # nothing of the learner's has run yet


def _rehearse(ask: Ask, code: str, filename: str, file: Path) -> list[Report]:
    try:
        reports = ask.on_ranks(play, code, filename, str(file), ranks=RANKS, filename=filename)
    except Contained as contained:
        kind_of_error, _, words = contained.message.partition(": ")
        if kind_of_error == FixedPort.__name__:
            raise Mistake("fixed-port", call=ask.call, got=words, want="where torchrun says") from None
        for words, (diagnosis, want) in _ERRORS.items():
            if words in contained.message:
                raise Mistake(diagnosis, call=ask.call, got=f"`{contained.message}`", want=want) from None
        raise
    for report in reports:
        seen: Seen | None = report.seen.get("script")
        if seen and seen.defined is not None:
            names = ", ".join(f"`{each}`" for each in seen.defined[:6]) or "nothing"
            raise Mistake("no-train", call=f"`{Path(filename).name}`", got=names)
    ended = {report.ended for report in reports}
    if ended != {"returned"}:
        words = " and ".join(report.words for report in reports)
        raise Mistake(how_it_ended(reports), call=ask.call, got=words)
    return reports


def _judge_training(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless the ranks made the right steps with the right samples."""
    _judge_samples(call, seen)
    for rank, each in enumerate(seen):
        for forward in each.forwards:
            if forward.region != torch.float16:
                where = "outside of autocast" if forward.region is None else f"in `{forward.region}`"
                got = f"a forward pass of rank {rank} ran {where}"
                raise Mistake("no-autocast", call=call, got=got, want="in `torch.float16`")
        if each.disabled:
            got = f"the scaler of rank {rank} is disabled"
            raise Mistake("scaler-off", call=call, got=got, want="enabled")
        if each.talk.barriers >= len(each.forwards):  # a few, outside of the steps, harm nobody
            got = f"rank {rank} entered {each.talk.barriers} barriers in {len(each.forwards)} steps"
            raise Mistake("barriers", call=call, got=got, want="none")
    for rank, each in enumerate(seen):
        if len(each.scales) != len(each.forwards):
            got = f"rank {rank} called `scaler.update()` {len(each.scales)} times"
            raise Mistake("no-update", call=call, got=got, want=f"{len(each.forwards)} times, once a step")
    place = difference(seen[0].weights, seen[1].weights, 0.0)
    if place:
        numbers = sum(each.numel() for each in seen[0].weights.values())
        late = all(each.talk.numbers >= numbers for each in seen)  # by hand: as many as a step's gradients
        got = f"`{place[0]}` is {place[1]} on rank 0 and {place[2]} on rank 1"
        raise Mistake(
            "averaged-late" if late else "ranks-differ", call=call, got=got, want="the same on all ranks"
        )
    _judge_weights(call, seen)
    right = replay(seen).scales
    for rank, each in enumerate(seen):
        if each.scales != right:
            got = f"the scales of rank {rank} after its updates are {listed(each.scales)}"
            raise Mistake("other-scales", call=call, got=got, want=listed(right))


def _judge_optimizers(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless the steps, which led to other weights, were those of plain SGD with the right rate."""
    for rank, each in enumerate(seen):
        for optimizer in each.optimizers:
            if not optimizer.plain:
                got = f"the optimizer of rank {rank} is {optimizer.shown}"
                raise Mistake("other-optimizer", call=call, got=got, want="SGD with nothing but a rate")
            if not math.isclose(optimizer.rate, RATE):
                got = f"the learning rate of rank {rank} is {optimizer.rate:g}"
                times = math.isclose(optimizer.rate, RATE * RANKS)
                raise Mistake("rate-times-ranks" if times else "other-rate", call=call, got=got, want=RATE)


def _judge_samples(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless each epoch dealt all samples out anew."""
    ranks = [[sample for forward in each.forwards for sample in forward.samples] for each in seen]
    counts = [len(samples) for samples in ranks]
    if not any(counts):
        raise Mistake(
            "never-trains", call=call, got="no backward pass came through `model`", want="one for each batch"
        )
    share = SAMPLES // RANKS if counts[0] == SAMPLES // RANKS * EPOCHS else _SHARE  # the rest may be left out
    if counts != [share * EPOCHS] * RANKS:
        both = sorted(set(ranks[0][:SAMPLES]) & set(ranks[1][:SAMPLES]))
        words = f"rank 0 trained on {counts[0]} samples in {EPOCHS} epochs, rank 1 on {counts[1]}"
        diagnosis = "samples-left-out"
        if len(both) > SAMPLES // 2 and min(counts) > _SHARE * EPOCHS:
            diagnosis = "same-samples"
        elif sum(counts) == SAMPLES * EPOCHS:
            diagnosis = "uneven"
        elif len(set(counts)) == 1 and counts[0] % _SHARE == 0:
            diagnosis = "other-epochs"
        raise Mistake(diagnosis, call=call, got=words, want=f"{_SHARE * EPOCHS} each")
    parts = [[samples[share * epoch :][:share] for epoch in range(EPOCHS)] for samples in ranks]
    for epoch in range(EPOCHS):
        both = sorted(set(parts[0][epoch]) & set(parts[1][epoch]))
        if len(both) > share * RANKS - SAMPLES and both:
            got = f"both ranks were given {len(both)} samples, such as number {both[0]}, in epoch {epoch}"
            raise Mistake("same-samples", call=call, got=got, want="none, or one to fill up")
        missing = set(range(SAMPLES)) - set(parts[0][epoch]) - set(parts[1][epoch])
        if len(missing) > max(0, SAMPLES - share * RANKS):
            got = f"nobody was given {len(missing)} samples, such as number {min(missing)}, in epoch {epoch}"
            raise Mistake("samples-left-out", call=call, got=got, want="all of them")
    mine = parts[0]
    begins = f"rank 0 begins epoch 0 with the samples {listed(mine[0][:5])}, and epoch 1 with {listed(mine[1][:5])}"
    orders = {tuple(order) for order in mine}
    if len(orders) == 1 or mine[0] == mine[1]:
        raise Mistake("same-order", call=call, got=begins, want="others")
    if len(orders) < EPOCHS:
        got = f"rank 0 has the samples in {len(orders)} different orders in {EPOCHS} epochs"
        raise Mistake("same-order", call=call, got=got, want=str(EPOCHS))
    if all(set(order) == set(mine[0]) for order in mine):
        got = f"rank 0 has the samples {listed(sorted(mine[0])[:5])}, … in every epoch"
        raise Mistake("same-parts", call=call, got=got, want="others in each")
    largest = max(len(forward.samples) for each in seen for forward in each.forwards)
    if largest != BATCH:
        raise Mistake(
            "other-batches",
            call=call,
            got=f"the largest batch of a rank has {largest} samples",
            want=str(BATCH),
        )


def _judge_weights(call: str, seen: Sequence[Seen]) -> None:
    weights, right = seen[0].weights, replay(seen).weights
    place = difference(weights, right, _RTOL)
    if not place:
        return
    _judge_optimizers(call, seen)
    name, got, want = place
    shown = {"got": f"`{name}` is {got} at the end", "want": want}
    for diagnosis, faults in MISCONCEPTIONS:
        wrong = replay(seen, faults)
        same_scales = seen[0].scales == wrong.scales or not faults.unscales
        if same_scales and not difference(weights, wrong.weights, _RTOL):
            raise Mistake(diagnosis, call=call, **shown)
    if any(each.half_loss for each in seen):
        raise Mistake("half-loss", call=call, got="the loss is `torch.float16`", want="`torch.float32`")
    before = {name: each.detach() for name, each in make_model().named_parameters()}
    raise Mistake(
        "hardly-moves" if hardly_moved(weights, before, right) else "wrong-weights", call=call, **shown
    )
