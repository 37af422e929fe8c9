"""Exercise 10.4: how many bytes of gradients one rank hands to all-reduce in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake

FP16, BF16 = torch.float16, torch.bfloat16


class Case(NamedTuple):
    """One call: a model by name, and the other arguments."""

    model: str
    ranks: int = 2
    autocast: torch.dtype | None = None
    compression: torch.dtype | None = None

    @property
    def words(self) -> str:
        """The call in words."""
        rest = f"ranks={self.ranks}, autocast={self.autocast}, compression={self.compression}"
        return f"`payload_bytes(model, {rest})` for {self.model}"


CASES = (
    Case("a linear layer"),
    Case("a linear layer", autocast=FP16),
    Case("a linear layer", compression=FP16),
    Case("a linear layer", ranks=8, autocast=BF16, compression=BF16),
    Case("a linear layer", ranks=3, autocast=FP16, compression=BF16),
    Case("a network with frozen first layer", ranks=4, autocast=BF16),
    Case("a network with batch norm", autocast=FP16),
    Case("two layers that share their weight"),
    Case("a network in BF16"),
    Case("a network in FP32 with an FP64 head", ranks=2, autocast=FP16),
    Case("a network in BF16", compression=FP16),
)


def model_of(case: Case) -> nn.Module:
    """Make the model of a case, with parameters on the CPU."""
    with torch.random.fork_rng(devices=[]):
        return _MODELS[case.model]()


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    return model


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    return model


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "a linear layer": lambda: nn.Linear(5, 3),
    "a network with frozen first layer": _frozen,
    "a network with batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)),
    "two layers that share their weight": _tied,
    "a network in BF16": lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)).to(BF16),
    "a network in FP32 with an FP64 head": lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1).double()),
}


def payload(
    case: Case,
    *,
    size: Callable[[nn.Parameter], int] | None = None,
    frozen: bool = False,
    buffers: bool = False,
    twice: bool = False,
    share: float = 1,
) -> int:
    """Return what is right; or, with an argument, what somebody with a misconception would return."""
    model = model_of(case)
    own = size or (lambda each: (case.compression or each.dtype).itemsize)
    counted = [
        each for _, each in model.named_parameters(remove_duplicate=not twice) if frozen or each.requires_grad
    ]
    total = sum(each.numel() * own(each) for each in counted)
    if buffers:
        total += sum(each.numel() * (case.compression or each.dtype).itemsize for each in model.buffers())
    return int(total * share)


# In the order in which they are tried; each gives the whole number that this misconception leads to.
_MISCONCEPTIONS: tuple[tuple[str, Callable[[Case], int]], ...] = (
    ("counts-numbers", lambda case: payload(case, size=lambda _: 1)),
    (
        "autocast-halves",
        lambda case: payload(
            case, size=lambda each: (case.compression or case.autocast or each.dtype).itemsize
        ),
    ),
    (
        "autocast-halves",
        lambda case: payload(
            case, size=lambda each: (case.autocast or case.compression or each.dtype).itemsize
        ),
    ),
    ("hook-ignored", lambda case: payload(case, size=lambda each: each.dtype.itemsize)),
    ("all-fp32", lambda case: payload(case, size=lambda _: (case.compression or torch.float32).itemsize)),
    ("counts-frozen", lambda case: payload(case, frozen=True)),
    ("counts-buffers", lambda case: payload(case, buffers=True)),
    ("counts-buffers", lambda case: payload(case, buffers=True, frozen=True)),
    ("counts-buffers", lambda case: payload(case, buffers=True, frozen=True, twice=True)),
    ("counts-twice", lambda case: payload(case, twice=True)),
    ("times-ranks", lambda case: payload(case, share=case.ranks)),
    ("per-rank", lambda case: payload(case, share=1 / case.ranks)),
    ("counts-bits", lambda case: payload(case, share=8)),
    ("counts-traffic", lambda case: payload(case, share=2 * (case.ranks - 1) / case.ranks)),
    ("counts-traffic", lambda case: payload(case, share=case.ranks - 1)),
)


@checker("10.4")
def payload_bytes(ask: Ask) -> None:
    """Ask for all cases; the first wrong one is shown, with the idea that leads to all answers."""
    trials = []
    for case in CASES:
        ask.in_words = lambda *_args, _case=case, **_more: _case.words
        got = ask(model_of(case), case.ranks, case.autocast, case.compression)
        want = payload(case)
        trials.append(expect.Trial(ask.call, (case,), expect.whole_number(ask.call, got, want), want))
    if all(trial.got == trial.want for trial in trials):
        return
    shown = expect.first_wrong(trials)
    first = next(trial for trial in trials if trial.got != trial.want)
    for explained in (trials, [first]):  # an idea behind all answers, or behind this one: slips come in pairs
        for diagnosis, idea in _MISCONCEPTIONS:
            if all(trial.got == idea(*trial.args) for trial in explained):
                got = f"{shown['got']} bytes were counted"
                raise Mistake(diagnosis, call=shown["call"], got=got, want=shown["want"])
    raise Mistake("wrong-value", **shown)
