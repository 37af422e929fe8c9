"""Exercise 10.2: which samples a rank gets in an epoch."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake

SIZES = ((24, 2), (24, 1), (50, 4), (23, 2), (1, 3))
_EPOCHS = 4  # that are compared
Parts = list[list[int]]
_STARTS = (
    itertools.count()
)  # where global random numbers begin: what ranks have drawn before differs in training, too


@checker("10.2")
def shard(ask: Ask) -> None:
    """Deal out several numbers of samples: in one epoch, in two, with another seed, and after other random numbers."""
    for samples, ranks in SIZES:
        _judge_epoch(ask, samples, ranks)
    for samples, ranks in SIZES[:3]:
        _judge_orders(ask, samples, ranks)
    _judge_random(ask)


def _part(ask: Ask, samples: int, rank: int, ranks: int, epoch: int, seed: int) -> list[int]:
    """Return the indices that the answer gives, or raise `Mistake` if they are none."""
    start = next(_STARTS)
    with _elsewhere(ask.answer, start, start):
        got = ask(samples, rank, ranks, epoch, seed)
    if got is None:
        raise Mistake("returned-none", call=ask.call, got=None, want="a list of indices")
    if type(got) is not list:
        shown = {"got": describe(got), "kind": kind(got), "want": "a list of ints"}
        raise Mistake("wrong-type", call=ask.call, **shown, advice="`.tolist()` or `list(…)` makes one.")
    for each in got:
        index = expect.whole_number(f"{ask.call}: an element", each, None)
        if not 0 <= index < samples:
            raise _mistake("no-such-sample", ask.call, f"index {index} was returned", f"0 to {samples - 1}")
    return [int(each) for each in got]


@contextlib.contextmanager
def _elsewhere(answer: Any, draw: int, salt: int) -> Iterator[None]:
    """Let random numbers, the process's number and `hash` of a text be others, as in each process of Python."""
    torch.default_generator.manual_seed(draw)
    random.seed(draw)
    np.random.seed(draw % 2**32)

    def salted(value: Any) -> int:
        return hash((salt, value)) if _has_text(value) else hash(value)

    names = getattr(answer, "__globals__", {"hash": None})
    texts = contextlib.nullcontext() if "hash" in names else mock.patch.dict(names, hash=salted)
    with texts, mock.patch.object(os, "getpid", return_value=1000 + draw):
        yield


def _has_text(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or (isinstance(value, tuple) and any(map(_has_text, value)))


def _parts(ask: Ask, samples: int, ranks: int, epoch: int = 0, seed: int = 0) -> Parts:
    return [_part(ask, samples, rank, ranks, epoch, seed) for rank in range(ranks)]


def _mistake(diagnosis: str, call: str, got: str, want: str) -> Mistake:
    return Mistake(diagnosis, call=call, got=got, want=want)


def _judge_epoch(ask: Ask, samples: int, ranks: int) -> None:
    """All ranks get equally many, all samples are dealt out, and none more often than it must be."""
    parts = _parts(ask, samples, ranks)
    call = f"`shard({samples}, rank, {ranks}, 0, 0)`"
    share = -(-samples // ranks)
    sizes, dealt = [len(each) for each in parts], Counter(index for part in parts for index in part)
    seen = f"the ranks get {_listed(sizes)} samples, {len(dealt)} of {samples} different ones"
    right = f"{share} each, and all {samples}"
    if ranks > 1 and samples > 1 and min(sizes) == samples:
        raise _mistake("everything", call, seen, right)
    if len(set(sizes)) > 1:
        raise _mistake("uneven" if samples >= ranks else "fills-up-once", call, seen, right)
    if sizes[0] == samples // ranks < share:
        raise _mistake("drops", call, seen, right)
    if sizes[0] > share:
        raise _mistake("padded-too-much", call, seen, right)
    if len(dealt) < samples:
        raise _mistake(_why_not_all(ask, parts), call, seen, right)
    most = max(dealt.values(), default=0)
    if samples and most > -(-share * ranks // samples):
        raise _mistake(
            "padded-too-much", call, f"one sample is dealt {most} times", f"{-(-share * ranks // samples)}"
        )


def _judge_orders(ask: Ask, samples: int, ranks: int) -> None:
    """The order is new in each epoch and with each seed, and so is who gets what."""
    first, again = _parts(ask, samples, ranks), _parts(ask, samples, ranks)
    other = _parts(ask, samples, ranks, seed=7)
    call = f"`shard({samples}, rank, {ranks}, epoch, seed)`"
    if first != again:
        now = _listed(again[0][:4])
        seen = f"rank 0 begins with {_listed(first[0][:4])}, and then, with the same arguments, with {now}"
        raise _mistake("global-random", call, seen, "the same")
    flat = sorted(range(samples))
    if samples > 4 and (
        _dealt_in_turn(first) == flat or [i for part in first for i in part][:samples] == flat
    ):
        raise _mistake("never-shuffles", call, f"rank 0 gets {_listed(first[0][:4])}, …", "a random order")
    _judge_epochs(call, [first, *(_parts(ask, samples, ranks, epoch) for epoch in range(1, _EPOCHS))])
    if first == other:
        seen = f"rank 0 begins with {_listed(first[0][:4])} for seeds 0 and 7"
        raise _mistake("seed-unused", call, seen, "another order")


def _judge_epochs(call: str, epochs: list[Parts]) -> None:
    """No two epochs have the same order, nor the same parts, whoever gets them."""
    for (one, before), (two, after) in itertools.combinations(enumerate(epochs), 2):
        if before == after:
            begins = (
                f"rank 0 begins with {_listed(before[0][:4])} in epoch {one} and with {_listed(after[0][:4])}"
            )
            raise _mistake("same-each-epoch", call, f"{begins} in epoch {two}", "another order")
        if len(before) > 1 and {frozenset(part) for part in before} == {frozenset(part) for part in after}:
            part = _listed(sorted(before[0])[:6])
            seen = f"the samples {part}, … are in one rank's part in epochs {one} and {two}"
            raise _mistake("parts-stay", call, seen, "others in each")


def _judge_random(ask: Ask) -> None:
    """Global random numbers go on as if nothing had been called."""

    def watched(*args: Any) -> bool:
        before = _random_states()
        ask.answer(*args)
        return before == _random_states()

    ask.call = "`shard(24, 0, 2, 3, 0)`"
    if not ask.run(watched, 24, 0, 2, 3, 0):
        raise _mistake(
            "random-disturbed", ask.call, "global random numbers were drawn or seeded", "left alone"
        )


def _random_states() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()
    return random.getstate(), torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2]


def _why_not_all(ask: Ask, parts: Parts) -> str:
    """Name the reason for samples that no rank gets: another order on each rank, or the same part for all."""
    if _differs(ask, draws=(1, 2), salts=(1, 1)):
        return "global-random"
    if _differs(ask, draws=(1, 1), salts=(1, 2)):
        return "hash-of-text"
    return "not-all" if all(set(part) == set(parts[0]) for part in parts) else "own-shuffle"


def _differs(ask: Ask, draws: tuple[int, int], salts: tuple[int, int]) -> bool:
    """Ask twice, after random numbers and with hashes that begin at other places."""
    found = []
    for draw, salt in zip(draws, salts, strict=True):
        with _elsewhere(ask.answer, draw, salt):
            found.append(ask(24, 0, 2, 0, 0))
    return bool(found[0] != found[1])


def _dealt_in_turn(parts: Parts) -> list[int]:
    return [index for turn in zip(*parts, strict=True) for index in turn]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
