"""Exercise 10.1: the script that torchrun starts on each rank."""

from __future__ import annotations

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
from amp_lab.course.lessons.l10.dealing import judge_samples
from amp_lab.course.lessons.l10.deciding import judge_decisions
from amp_lab.course.lessons.l10.noting import FixedPort, Seen
from amp_lab.course.lessons.l10.rehearsal import BATCH, EPOCHS, RANKS, play
from amp_lab.course.lessons.l10.saving import judge_end, judge_file, judge_type
from amp_lab.course.lessons.l10.stepping import NOT_HERE, UNSCALED, how_it_ended
from amp_lab.course.lessons.l10.weights import judge_weights, refuse_optimizer

# What a scaler says, and what it means here: diagnosis and what should be.
_ERRORS = dict.fromkeys(UNSCALED, ("unscaled", "")) | {
    "No inf checks were recorded for this optimizer": ("no-gradients", ""),
    "No inf checks were recorded prior to update": ("no-step", ""),
    "step() has already been called since the last update()": (
        "no-update",
        "one step, then one update, for each batch",
    ),
    "unscale_() has already been called": ("unscales-twice", ""),
    "unscale_() is being called after step()": ("unscales-twice", ""),
    "Attempting to unscale FP16 gradients": ("half-weights", ""),
}


@checker("10.1")
def train(ask: Ask) -> None:
    """Run the file on two ranks, and look at what was seen of each; if all was right, once more, with a NaN."""
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
    judge_decisions(ask, code, str(path.resolve()))


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
        words, diagnosis = " and ".join(report.words for report in reports), how_it_ended(reports)
        if diagnosis == "waits" and not any(_has_met(report) for report in reports):
            diagnosis = "never-meets"
        raise Mistake(diagnosis, call=ask.call, got=words)
    return reports


def _has_met(report: Report) -> bool:
    """Return whether a rank has been in a group: if its notes are lost, it may have."""
    seen: Seen | None = report.seen.get("script")
    return seen is None or bool(seen.ranks or seen.talk.barriers or seen.talk.numbers)


def _judge_training(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless the ranks made the right steps with the right samples."""
    for rank, each in enumerate(seen):
        if each.ranks and each.ranks[-1] != RANKS:
            got = f"the process group of rank {rank} has {each.ranks[-1]} rank{'s' if each.ranks[-1] > 1 else ''}"
            raise Mistake("other-group", call=call, got=got, want=str(RANKS))
        if not each.forwards:
            judge_type(call, rank, each.returned)  # a generator, which does nothing before it is asked
    judge_samples(call, seen)
    for rank, each in enumerate(seen):
        _judge_steps(call, rank, each)
    for rank, each in enumerate(seen):
        if len(each.scales) != len(each.forwards):
            got = f"rank {rank} called `scaler.update()` {len(each.scales)} times"
            raise Mistake("no-update", call=call, got=got, want=f"{len(each.forwards)} times, once a step")
    judge_weights(call, seen)


def _judge_steps(call: str, rank: int, seen: Seen) -> None:
    """Raise `Mistake` for what a step of one rank is made with, or what it does beside."""
    for forward in seen.forwards:
        if forward.region != torch.float16:
            where = "outside of autocast" if forward.region is None else f"in `{forward.region}`"
            got = f"a forward pass of rank {rank} ran {where}"
            raise Mistake("no-autocast", call=call, got=got, want="in `torch.float16`")
    if seen.disabled:
        raise Mistake("scaler-off", call=call, got=f"the scaler of rank {rank} is disabled", want="enabled")
    for optimizer in seen.optimizers:
        if optimizer.extras:  # a small weight decay hardly shows in the weights
            refuse_optimizer(call, rank, optimizer.shown)
    if len(set(seen.talk.barriers)) > EPOCHS + 1:  # outside of the steps they harm nobody
        got = f"rank {rank} entered {len(seen.talk.barriers)} barriers in {len(seen.forwards)} steps"
        raise Mistake("barriers", call=call, got=got, want="none")
