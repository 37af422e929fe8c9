"""Exercise 10.1: the script that torchrun starts on each rank."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import NotHere, checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.judging.launched import Report, available
from amp_lab.course.lessons.l10.rehearsal import (
    BATCH,
    EPOCHS,
    RANKS,
    SAMPLES,
    FixedPort,
    Seen,
    State,
    make_model,
    play,
)
from amp_lab.course.lessons.l10.replaying import MISCONCEPTIONS, replay
from amp_lab.course.lessons.l10.stepping import NOT_HERE, UNSCALED

_SHARE = SAMPLES // RANKS
_MOST_BARRIERS = 2  # one before, one after the training harms nobody


@checker("10.1")
def train(ask: Ask) -> None:
    """Run the file once on two ranks, then look at what was seen of each, from the first line to the last."""
    if not available():
        raise NotHere(NOT_HERE)
    path = Path(ask.answer)
    code = path.read_text(encoding="utf-8", errors="replace")
    ask.call = f"`{path.name}`"
    _compile(ask, code, str(path.resolve()))
    ask.call = f"`train(…, epochs={EPOCHS}, batch_size={BATCH})` on {RANKS} ranks"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.pt")
        reports = _rehearse(ask, code, str(path.resolve()), file)
        seen = [report.seen["script"] for report in reports]
        _judge_training(ask.call, seen)
        _judge_file(ask.call, seen, file)
    _judge_end(ask.call, seen)


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
        if any(words in contained.message for words in UNSCALED):
            raise Mistake("unscaled", call=ask.call, got=f"`{contained.message}`") from None
        raise
    for report in reports:
        seen: Seen | None = report.seen.get("script")
        if seen and seen.defined:
            raise Mistake(
                "no-train", call=f"`{Path(filename).name}`", got=", ".join(map(describe, seen.defined[:6]))
            )
    ended = {report.ended for report in reports}
    if ended != {"returned"}:
        words = " and ".join(report.words for report in reports)
        raise Mistake("died" if "died" in ended else "waits", call=ask.call, got=words)
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
        if each.barriers > _MOST_BARRIERS:
            got = f"rank {rank} entered {each.barriers} barriers in {len(each.forwards)} steps"
            raise Mistake("barriers", call=call, got=got, want="none")
    for rank, each in enumerate(seen):
        if len(each.scales) != len(each.forwards):
            got = f"rank {rank} called `scaler.update()` {len(each.scales)} times"
            raise Mistake(
                "no-update", call=call, got=got, want=f"{len(each.forwards)} times, once in each step"
            )
    place = _difference(seen[0].weights, seen[1].weights, 0.0)
    if place:
        got = f"`{place[0]}` is {place[1]} on rank 0 and {place[2]} on rank 1"
        raise Mistake("ranks-differ", call=call, got=got, want="the same on all ranks")
    _judge_weights(call, seen)
    right = replay(seen).scales
    for rank, each in enumerate(seen):
        if each.scales != right:
            got = f"the scales of rank {rank} after its updates are {_listed(each.scales)}"
            raise Mistake("other-scales", call=call, got=got, want=_listed(right))


def _judge_samples(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless each epoch dealt all samples out anew."""
    ranks = [[sample for forward in each.forwards for sample in forward.samples] for each in seen]
    counts = [len(samples) for samples in ranks]
    if not any(counts):
        raise Mistake(
            "never-trains", call=call, got="`model` made no forward pass", want="one for each batch"
        )
    if counts != [_SHARE * EPOCHS] * RANKS:
        both = sorted(set(ranks[0][:SAMPLES]) & set(ranks[1][:SAMPLES]))
        words = f"rank 0 was given {counts[0]} samples in {EPOCHS} epochs, rank 1 {counts[1]}"
        diagnosis = (
            "same-samples"
            if len(both) > SAMPLES // 2 and min(counts) > _SHARE * EPOCHS
            else "samples-left-out"
        )
        raise Mistake(diagnosis, call=call, got=words, want=f"{_SHARE * EPOCHS} each")
    parts = [[samples[_SHARE * epoch :][:_SHARE] for epoch in range(EPOCHS)] for samples in ranks]
    for epoch in range(EPOCHS):
        both = sorted(set(parts[0][epoch]) & set(parts[1][epoch]))
        if both:
            got = f"both ranks were given {len(both)} samples, such as number {both[0]}, in epoch {epoch}"
            raise Mistake("same-samples", call=call, got=got, want="none")
        missing = set(range(SAMPLES)) - set(parts[0][epoch]) - set(parts[1][epoch])
        if missing:
            got = f"nobody was given {len(missing)} samples, such as number {min(missing)}, in epoch {epoch}"
            raise Mistake("samples-left-out", call=call, got=got, want="all of them")
    mine = parts[0]
    begins = f"rank 0 begins epoch 0 with the samples {_listed(mine[0][:5])}, and epoch 1 with {_listed(mine[1][:5])}"
    if mine[0] == mine[1]:
        raise Mistake("same-order", call=call, got=begins, want="others")
    if set(mine[0]) == set(mine[1]) == set(mine[2]):
        got = f"rank 0 has the samples {_listed(sorted(mine[0])[:5])}, … in every epoch"
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
    right = replay(seen).weights
    place = _difference(seen[0].weights, right, 0.02)
    if not place:
        return
    name, got, want = place
    shown = {"got": f"`{name}` is {got} at the end", "want": want}
    for diagnosis, faults in MISCONCEPTIONS:
        if not _difference(seen[0].weights, replay(seen, faults).weights, 0.02):
            raise Mistake(diagnosis, call=call, **shown)
    raise Mistake("wrong-weights", call=call, **shown)


def _judge_file(call: str, seen: Sequence[Seen], file: Path) -> None:
    """Raise `Mistake` unless one rank has written the weights, for a plain model."""
    if sum(each.saved > 0 for each in seen) > 1:
        raise Mistake("all-save", call=call, got=f"{RANKS} ranks called `torch.save`", want="rank 0 alone")
    if not file.is_file():
        raise Mistake("not-saved", call=call, got="there is no file at `path`", want="the weights")
    try:
        saved = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever a file can hold
        seen_type = f"the file does not load with `weights_only=True` ({type(error).__name__})"
        raise Mistake("not-plain", call=call, got=seen_type, want="a state dict") from None
    names = list(make_model().state_dict())
    found = list(saved) if isinstance(saved, dict) else []
    if found and all(str(name).startswith("module.") for name in found):
        raise Mistake("wrapped-names", call=call, got=f"the file names `{found[0]}`", want=f"`{names[0]}`")
    if found != names:
        got = f"the file holds {describe(found) if found else kind(saved)}"
        raise Mistake("not-plain", call=call, got=got, want=describe(names))
    place = _difference(saved, seen[0].weights, 0.0)
    if place:
        got = f"`{place[0]}` is {place[1]} in the file"
        raise Mistake("saved-early", call=call, got=got, want=f"{place[2]}, as in the model")


def _judge_end(call: str, seen: Sequence[Seen]) -> None:
    for rank, each in enumerate(seen):
        if each.group_left:
            got = f"the process group of rank {rank} is still open at the end"
            raise Mistake("group-left", call=call, got=got, want="closed")
        _judge_returned(call, each.returned, each.scales)


def _judge_returned(call: str, got: Any, want: list[float]) -> None:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a list of scales")
    if isinstance(got, tuple):
        shown = {
            "got": got[0],
            "kind": got[1],
            "want": "a list of floats",
            "advice": "`get_scale()` gives a float.",
        }
        raise Mistake("wrong-type", call=call, **shown)
    if got != want:
        raise Mistake("wrong-scales", call=call, got=_listed(got), want=_listed(want))


def _difference(one: State, other: State, rtol: float) -> tuple[str, str, str] | None:
    """Return name and values of the first number that is another, or None; `rtol` is of the largest in its tensor."""
    for name in other:
        mine, right = one[name].double(), other[name].double()
        near = (mine - right).abs() <= rtol * right.abs().max()
        near |= (mine == right) | (mine.isnan() & right.isnan())
        if not near.all():
            index = tuple(int(each) for each in (~near).nonzero()[0])
            where = f"{name}[{', '.join(map(str, index))}]"
            return where, f"{float(mine[index]):.7g}", f"{float(right[index]):.7g}"
    return None


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in numbers) or "none"
