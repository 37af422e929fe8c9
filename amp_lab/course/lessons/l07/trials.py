"""Putting somebody's loop to the test: step by step, beside a right one."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l07.nets import Call, autocast_in_force
from amp_lab.course.lessons.l07.scenes import DEVICE, Bench, State, seed_all
from amp_lab.watching.report import Report
from amp_lab.watching.watch import watch

_ELSEWHERE_RTOL = 0.02
RTOL = 0.01  # of how far a tensor has moved at most: FP16 rounds, and right loops round in different places
_KNOWN_ERRORS = (AttributeError, AssertionError, TypeError, RuntimeError, ValueError, ArithmeticError)
Step = Callable[..., Any]


class Trial(NamedTuple):
    """One call: what it returned, what it did, where that led, and what is right."""

    call: str
    number: int  # of the step, from 0
    bench: Bench
    make: Callable[[], Bench]  # another one like it, at the beginning
    got: Any
    want: Any
    calls: list[Call]
    watched: Callable[[], Report]  # lets the watcher look on while the same is done once more
    elsewhere: Callable[[Callable[[], Bench]], bool]  # whether the answer is right there, up to the same step
    start: State  # of the whole training
    before: State  # of this step
    after: State
    right: State
    error: str = ""  # what it raised, if it did

    def differs(self, rtol: float = RTOL) -> dict[str, str] | None:
        """Return the first thing that is not as it should be, in words, or None."""
        return difference(self.after, self.right, self.start, rtol)

    @property
    def overflows(self) -> bool:
        """Whether the gradients of this step overflow."""
        return self.right.scale < self.before.scale


def play(
    ask: Ask,
    name: str,
    make: Callable[[], Bench],
    right: Step,
    judge: Callable[[Trial], None],
    *,
    by_name: bool = False,
) -> None:
    """Train with the answer, and with `right` beside it; hand each step to `judge`, which raises if it is wrong.

    An error that the answer raises is handed to `judge`, too, and raised again if that makes nothing of it. `by_name`:
    a region that is left open has a diagnosis of its own.
    """
    bench, other = make(), make()
    start = bench.state()
    for number in range(len(bench.scene.plan)):
        ask.call = f"`{name}` in step {number + 1}{bench.scene.happens(number)} ({bench.scene.words})"
        bench.calls.clear()
        before = bench.state()
        want = quietly(_call_seeded, right, number, other)
        known = {
            "call": ask.call,
            "number": number,
            "bench": bench,
            "make": make,
            "watched": partial(_watched, ask, make, number),
            "elsewhere": partial(_right_elsewhere, ask, right, number),
            "want": want,
            "start": start,
        }
        try:
            given = bench.arguments(number)
            data = [each for each in given if isinstance(each, (torch.Tensor, list))]
            saved = copy.deepcopy(data)
            got, open_region = ask.run(_call_seeded_and_look, ask.answer, number, given)
        except Contained as contained:
            error = _first_line(contained)
            if error:
                judge(_trial(known, bench, other, before, got=None, error=error))
            raise
        _must_be_unchanged(ask.call, data, saved)
        if open_region:
            raise _left_open(ask.call, open_region, by_name=by_name)
        judge(_trial(known, bench, other, before, got=got))


def _left_open(call: str, dtype: torch.dtype, *, by_name: bool) -> Mistake:
    if by_name:
        return Mistake("region-left-open", call=call, got=f"`{dtype}`")
    observed = {"place": "autocast, after the call,", "got": f"`{dtype}`", "want": "off", "watcher": ""}
    return Mistake("basics", call=call, **observed, says="An autocast region was entered and never left.")


def _trial(known: Mapping[str, Any], bench: Bench, other: Bench, before: State, **rest: Any) -> Trial:
    calls = list(bench.calls)
    return Trial(**known, calls=calls, before=before, after=bench.state(), right=other.state(), **rest)


def _watched(ask: Ask, make: Callable[[], Bench], last: int) -> Report:
    """Let the answer train once more, up to the step that went wrong, with the watcher beside it.

    A right answer is not watched: it has nothing to explain, and is judged in a third of the time.
    """
    bench = make()
    ask.around = seen = watch(bench.models, bench.all_optimizers, bench.scaler, min_scale=None)
    try:
        with contextlib.suppress(Contained):  # what it raises is known already
            for number in range(last + 1):
                bench.calls.clear()
                ask.run(_call_seeded, ask.answer, number, bench)
    finally:
        ask.around = contextlib.nullcontext()
    return seen.report()


def _right_elsewhere(ask: Ask, right: Step, last: int, make: Callable[[], Bench]) -> bool:
    """Return whether the answer trains as `right` does on another bench, weights and scale compared at the end."""
    bench, other = make(), make()
    start = bench.state()
    with contextlib.suppress(Contained):
        for number in range(last + 1):
            bench.calls.clear()
            ask.run(_call_seeded, ask.answer, number, bench)
            quietly(_call_seeded, right, number, other)
        return difference(bench.state(), other.state(), start, _ELSEWHERE_RTOL) is None
    return False


def _must_be_unchanged(call: str, data: list[Any], saved: list[Any]) -> None:
    """Raise `Mistake` if a batch is not what it was: inputs and targets, or a list of such pairs."""
    names = ("`micro_batches`",) if isinstance(data[0], list) else ("`inputs`", "`targets`")
    for name, got, want in zip(names, data, saved, strict=True):
        if not _same(got, want):
            raise Mistake("mutated-input", call=call, name=name, want=describe(want), got=describe(got))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return one.shape == other.shape and torch.equal(one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5))


def _call_seeded(function: Step, number: int, bench: Bench) -> Any:
    return _call_with_seed(function, number, bench.arguments(number))


def _call_with_seed(function: Step, number: int, given: tuple[Any, ...]) -> Any:
    with torch.random.fork_rng(devices=[]):
        seed_all(number)
        return function(*given)


def _call_seeded_and_look(
    answer: Step, number: int, given: tuple[Any, ...]
) -> tuple[Any, torch.dtype | None]:
    return _call_with_seed(answer, number, given), autocast_in_force(DEVICE.type)


def _first_line(contained: Contained) -> str:
    """Return an error in a few words if it is one of Python's or PyTorch's; empty for a stub and what is stopped."""
    error = contained.error
    if contained.fault != "exception" or not isinstance(error, _KNOWN_ERRORS):
        return ""
    if isinstance(error, NotImplementedError):
        return ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(".: ")[:160]


def difference(after: State, right: State, start: State, rtol: float = RTOL) -> dict[str, str] | None:
    """Return the first thing that is not as it should be after a step, in words: `place`, `got` and `want`; or None.

    Weights come first, then the scale, then what the optimizer remembers.
    """
    for momenta in (False, True):
        for name, want in right.tensors.items():
            if (" of " in name) is momenta:
                found = _far(name, after, want, start, rtol)
                if found:
                    return found
        if not momenta and after.scale != right.scale:
            return {"place": "the scale", "got": f"{after.scale:g}", "want": f"{right.scale:g}"}
    if after.clean_steps != right.clean_steps:
        counts = {"got": str(after.clean_steps), "want": str(right.clean_steps)}
        return {"place": "the scaler's count of clean steps"} | counts
    return None


def _far(name: str, after: State, want: torch.Tensor, begun: State, rtol: float) -> dict[str, str] | None:
    got, start = after.tensors.get(name), begun.tensors.get(name)
    if got is None and " of " in name:  # a fused optimizer makes its momenta in a skipped step, others do not
        got = torch.zeros_like(want)
    if got is None or got.shape != want.shape:
        return {"place": f"`{name}`", "got": "not there" if got is None else describe(got), "want": "there"}
    got, want = got.double(), want.double()
    moved = (want - (0 if start is None else start.double())).abs().max()
    near = (got - want).abs() <= rtol * moved + 1e-6 * want.abs()
    near |= (got == want) | (got.isnan() & want.isnan())
    if near.all():
        return None
    worst = int((got - want).abs().nan_to_num(nan=torch.inf).masked_fill(near, -1).argmax())
    index = tuple(int(each) for each in torch.unravel_index(torch.tensor(worst), want.shape))
    place = f"`{name}[{', '.join(map(str, index))}]`" if index else f"`{name}`"
    return {"place": place, "got": f"{float(got[index]):.6g}", "want": f"{float(want[index]):.6g}"}


def quietly(function: Step, *arguments: Any) -> Any:
    """Call one of our own loops; what PyTorch warns of, of a schedule for one, is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def looks_like(trial: Trial, other: Step, rtol: float = RTOL) -> Trial | None:
    """Return what `trial` would be if `other` were right, provided that this has led to the same up to now."""
    bench, got = trial.make(), None
    try:
        for number in range(trial.number + 1):
            got = quietly(_call_seeded, other, number, bench)
    except _KNOWN_ERRORS:
        return None
    alike = trial._replace(right=bench.state(), want=got)
    return alike if alike.differs(rtol) is None else None


def expect_loss(trial: Trial, *, scaled: str, attached: str, wrong: str, rtol: float = RTOL) -> None:
    """Raise `Mistake` unless a step returned its loss: one number in a tensor, without a history and not scaled."""
    got, want = trial.got, trial.want
    expect_number(trial, want, attached)
    value, right = float(got), float(want)
    if _near(value, right, rtol):
        return
    diagnosis = scaled if _near(value, right * trial.before.scale, rtol) else wrong
    raise Mistake(diagnosis, call=trial.call, got=f"{value:.6g}", want=f"{right:.6g}")


def expect_number(trial: Trial, want: torch.Tensor, attached: str) -> None:
    """Raise `Mistake` unless a tensor with one number, and without a history, was returned."""
    got = trial.got
    if got is None:
        raise Mistake("returned-none", call=trial.call, got=None, want="a tensor")
    if not isinstance(got, torch.Tensor):
        words = {"got": describe(got), "kind": kind(got), "want": "a tensor", "advice": ""}
        raise Mistake("wrong-type", call=trial.call, **words)
    if tuple(got.shape) != tuple(want.shape):
        raise Mistake("wrong-shape", call=trial.call, got=tuple(got.shape), want=tuple(want.shape))
    if got.requires_grad:
        raise Mistake(attached, call=trial.call, got="`requires_grad=True`")


def _near(got: float, want: float, rtol: float) -> bool:
    if got != got or want != want:
        return got != got and want != want
    return got == want or abs(got - want) <= rtol * abs(want)
