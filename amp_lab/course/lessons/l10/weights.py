"""Exercise 10.1: whether the steps of a script have led where they should."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l10.comparing import State, difference, hardly_moved
from amp_lab.course.lessons.l10.noting import Scaler, Seen
from amp_lab.course.lessons.l10.rehearsal import RANKS, RATE, make_model
from amp_lab.course.lessons.l10.replaying import MISCONCEPTIONS, replay
from amp_lab.course.lessons.l10.saving import listed

_RTOL = 5e-4  # FP16 rounds, and right scripts round in different places: by 1e-4, as measured
_SCALER = Scaler(2.0**16, 2.0, 0.5, 2000)  # as one is made of which nothing is asked


def judge_weights(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless all ranks have the right weights and scales."""
    _judge_agreement(call, seen)
    right = replay(seen)
    place = difference(seen[0].weights, right.weights, _RTOL)
    if place:
        for rank, each in enumerate(seen):
            _judge_tools(call, rank, each)
        shown = {"got": f"`{place[0]}` is {place[1]} at the end", "want": place[2]}
        raise Mistake(_why_other_weights(seen, right.weights), call=call, **shown)
    for rank, each in enumerate(seen):
        if each.scales != right.scales:
            got = f"the scales of rank {rank} after its updates are {listed(each.scales)}"
            raise Mistake("other-scales", call=call, got=got, want=listed(right.scales))


def _judge_agreement(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless all ranks have the same weights, and have had the same scales."""
    names = [name for name, _ in make_model().named_parameters()]
    for rank, each in enumerate(seen):
        if list(each.weights) != names:
            found = len(set(names) & set(each.weights))
            got = f"`model` has {found} of its {len(names)} parameters at the end on rank {rank}"
            raise Mistake("other-parameters", call=call, got=got, want="all, as plain tensors")
    place = difference(seen[0].weights, seen[1].weights, 0.0)
    if place:
        numbers = sum(each.numel() for each in seen[0].weights.values())
        late = all(each.talk.exchanges(numbers) for each in seen)
        got = f"`{place[0]}` is {place[1]} on rank 0 and {place[2]} on rank 1"
        diagnosis = "averaged-late" if late else "ranks-differ"
        raise Mistake(diagnosis, call=call, got=got, want="the same on all ranks")
    if seen[0].scales != seen[1].scales:
        one, other = (listed(each.scales) for each in seen)
        got = f"the scales of rank 0 after its updates are {one}, those of rank 1 {other}"
        raise Mistake("averaged-late", call=call, got=got, want="the same on all ranks")


def _judge_tools(call: str, rank: int, seen: Seen) -> None:
    """Raise `Mistake` unless the steps, which led to other weights, were those of plain SGD and a plain scaler."""
    parameters = len(seen.weights)
    for optimizer in seen.optimizers:
        if not optimizer.sgd:
            refuse_optimizer(call, rank, optimizer.shown)
        if optimizer.parameters != parameters:
            refuse_optimizer(call, rank, f"one with {optimizer.parameters} of {parameters} parameters")
        for rate in optimizer.rates:
            if not math.isclose(rate, RATE, rel_tol=1e-6):
                times = math.isclose(rate, RATE * RANKS, rel_tol=1e-6)
                got = f"the learning rate of rank {rank} is {rate:g}"
                raise Mistake("rate-times-ranks" if times else "other-rate", call=call, got=got, want=RATE)
    for name, value in (seen.scaler or _SCALER)._asdict().items():
        right = getattr(_SCALER, name)
        if value != right:
            got = f"the scaler of rank {rank} has `{name}={value:g}`"
            raise Mistake("other-scales", call=call, got=got, want=f"`{name}={right:g}`")
    if seen.half_loss:
        raise Mistake(
            "half-loss", call=call, got=f"the loss of rank {rank} is `torch.float16`", want="`torch.float32`"
        )


def refuse_optimizer(call: str, rank: int, shown: str) -> NoReturn:
    """Raise `Mistake` for an optimizer that is another than the exercise asks for, in words."""
    got = f"an optimizer of rank {rank} is {shown}"
    raise Mistake("other-optimizer", call=call, got=got, want="SGD with nothing but a rate")


def _why_other_weights(seen: Sequence[Seen], right: State) -> str:
    """Name the misconception that leads to the weights of all ranks."""
    weights = seen[0].weights
    for diagnosis, faults in MISCONCEPTIONS:
        wrong = replay(seen, faults)
        same_scales = seen[0].scales == wrong.scales or not faults.unscales
        if same_scales and not difference(weights, wrong.weights, _RTOL):
            return diagnosis
    before = {name: each.detach() for name, each in make_model().named_parameters()}
    return "hardly-moves" if hardly_moved(weights, before, right) else "wrong-weights"
