"""Exercise 10.1: whether the ranks of a script have dealt out the samples."""

from __future__ import annotations

from collections.abc import Sequence

from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l10.noting import Seen
from amp_lab.course.lessons.l10.rehearsal import BATCH, EPOCHS, RANKS, SAMPLES
from amp_lab.course.lessons.l10.saving import listed

_SHARE = -(-SAMPLES // RANKS)  # of a rank in an epoch, filled up
_FEW = 2  # samples that ranks share by chance, or because they are filled up


def judge_samples(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless each epoch dealt all samples out anew, in batches of the right size."""
    ranks = [[sample for forward in each.forwards for sample in forward.samples] for each in seen]
    counts = [len(samples) for samples in ranks]
    if not any(counts):
        got = "no backward pass came through `model`"
        raise Mistake("never-trains", call=call, got=got, want="one for each batch")
    strange = next((rank for rank, samples in enumerate(ranks) if -1 in samples), None)
    if strange is not None:
        got = f"`model` was given inputs on rank {strange} that are not in `dataset`"
        raise Mistake("other-inputs", call=call, got=got, want="those of the samples, as they are")
    share = SAMPLES // RANKS if counts[0] == SAMPLES // RANKS * EPOCHS else _SHARE  # the rest may be left out
    if counts != [share * EPOCHS] * RANKS:
        got = f"rank 0 trained on {counts[0]} samples in {EPOCHS} epochs, rank 1 on {counts[1]}"
        raise Mistake(_why_others(ranks), call=call, got=got, want=f"{_SHARE * EPOCHS} each")
    parts = [[samples[share * epoch :][:share] for epoch in range(EPOCHS)] for samples in ranks]
    for epoch in range(EPOCHS):
        _judge_epoch(call, epoch, *(part[epoch] for part in parts))
    _judge_orders(call, parts[0])
    largest = max(len(forward.samples) for each in seen for forward in each.forwards)
    if largest != BATCH:
        got = f"the largest batch of a rank has {largest} sample{'s' if largest > 1 else ''}"
        raise Mistake("other-batches", call=call, got=got, want=str(BATCH))


def _why_others(ranks: Sequence[Sequence[int]]) -> str:
    """Name the reason for another number of samples than is right."""
    counts = [len(samples) for samples in ranks]
    both = set(ranks[0][:_SHARE]) & set(ranks[1][:_SHARE])
    if len(both) > _FEW and min(counts) > _SHARE * EPOCHS:
        return "same-samples"
    if sum(counts) == SAMPLES * EPOCHS:
        return "uneven"
    return "other-epochs" if len(set(counts)) == 1 and counts[0] % _SHARE == 0 else "samples-left-out"


def _judge_epoch(call: str, epoch: int, one: Sequence[int], other: Sequence[int]) -> None:
    """Raise `Mistake` unless two ranks share out all samples; those who get as few as they can leave some out."""
    dealt = len(one) + len(other)
    both = sorted(set(one) & set(other))
    if both and len(both) > dealt - SAMPLES:
        got = f"both ranks were given {len(both)} samples, such as number {both[0]}, in epoch {epoch}"
        raise Mistake("same-samples", call=call, got=got, want="none, or one to fill up")
    missing = set(range(SAMPLES)) - set(one) - set(other)
    if len(missing) > max(0, SAMPLES - dealt):
        got = f"nobody was given {len(missing)} samples, such as number {min(missing)}, in epoch {epoch}"
        raise Mistake("samples-left-out", call=call, got=got, want="all of them")


def _judge_orders(call: str, epochs: Sequence[Sequence[int]]) -> None:
    """Raise `Mistake` unless a rank has other samples in each epoch, and in another order."""
    first, second = epochs[:2]
    begins = f"epoch 0 with the samples {listed(first[:5])}, and epoch 1 with {listed(second[:5])}"
    orders = {tuple(order) for order in epochs}
    if len(orders) == 1 or first == second:
        raise Mistake("same-order", call=call, got=f"rank 0 begins {begins}", want="others")
    if len(orders) < EPOCHS:
        got = f"rank 0 has the samples in {len(orders)} different orders in {EPOCHS} epochs"
        raise Mistake("same-order", call=call, got=got, want=str(EPOCHS))
    if all(set(order) == set(first) for order in epochs):
        got = f"rank 0 has the samples {listed(sorted(first)[:5])}, … in every epoch"
        raise Mistake("same-parts", call=call, got=got, want="others in each")
