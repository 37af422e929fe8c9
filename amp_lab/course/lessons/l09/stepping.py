"""Exercise 9.1: the step of a Trainer, in any precision."""

from __future__ import annotations

import warnings
from itertools import groupby
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l09.faulty_steps import Faults, Step, right, step_with
from amp_lab.course.lessons.l09.runs import Batch, Bench, Scene, State, difference, scenes

RTOL = 0.02  # 16-bit formats round, and right steps round in different places
# The first that leads to the same numbers is told, so an idea comes before others that look like it in one step.
_MISCONCEPTIONS = (
    ("first-only", Faults(which="first")),
    ("last-only", Faults(which="last")),
    ("counts-batches", Faults(share="batches")),
    ("not-divided", Faults(share="whole")),
    ("divides-twice", Faults(share="all")),
    ("last-only", Faults(zero="each")),
    ("last-only", Faults(zero="each", share="batches")),
    ("last-only", Faults(zero="each", share="whole")),
    ("clears-too-late", Faults(zero="last")),
    ("never-clears", Faults(zero="never")),
    ("never-clears", Faults(zero="never", share="batches")),
    ("never-clears", Faults(zero="never", share="whole")),
    ("clips-scaled", Faults(clip="scaled")),
    ("clips-each", Faults(clip="each")),
    ("clips-values", Faults(clip="values")),
    ("never-clips", Faults(clip="never")),
    ("always-schedules", Faults(schedule="always")),
    ("schedules-early", Faults(schedule="early")),
    ("never-schedules", Faults(schedule="never")),
    ("growth-is-skip", Faults(schedule="same")),
    ("passes-by", Faults(scaler="passed by")),
    ("passes-by", Faults(scaler="passed by", schedule="always")),
    ("no-update", Faults(scaler="no update")),
    ("no-update", Faults(scaler="no update", schedule="always")),
)


@checker("9.1")
def train_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene in scenes():
        _play(ask, scene)


class Trial(NamedTuple):
    """One call: what came of it, what should have, and the states around it. `error` is what it raised, if it did."""

    call: str
    scene: Scene
    number: int
    bench: Bench
    got: Any
    want: float | None  # None: an error is right
    error: BaseException | None
    start: State
    before: State
    after: State
    right: State


def _play(ask: Ask, scene: Scene) -> None:
    bench, other = Bench(scene), Bench(scene)
    start = bench.state()
    for number in range(len(scene.plan)):
        ask.call = scene.call(number)
        before = bench.state()
        bench.events.clear()
        want = _quietly(right, other.arguments(number))
        given = bench.arguments(number)
        pairs = list(given[5])
        saved = [(inputs.clone(), targets.clone()) for inputs, targets in pairs]
        contained = got = None
        try:
            got = ask.run(ask.answer, *given)
        except Contained as raised:
            contained = raised
        _expect_untouched(ask.call, given[5], pairs, saved)
        error = contained.error if contained else None
        states = {"start": start, "before": before, "after": bench.state(), "right": other.state()}
        trial = Trial(ask.call, scene, number, bench, got, want, error, **states)
        if contained is None:
            _judge_returned(trial)
        else:
            _judge_raised(trial, contained)


def _quietly(step: Step, given: tuple[Any, ...]) -> float | None:
    """Return what one of our own steps returns; None if it raises what it should."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of a scheduler that moves before the optimizer, say
            return step(*given)
    except FloatingPointError:
        return None


def _expect_untouched(call: str, got: list[Batch], pairs: list[Batch], saved: list[Batch]) -> None:
    """Raise `Mistake` if the list has not the pairs any more that it had, or if their numbers have changed."""
    if len(got) != len(pairs) or any(one is not other for one, other in zip(got, pairs, strict=True)):
        shown = {"got": f"a list of {len(got)} other pairs", "want": f"one of {len(pairs)} pairs"}
        raise Mistake("window-changed", call=call, **shown)
    for number, batches in enumerate(zip(pairs, saved, strict=True)):
        for name, one, other in zip(("inputs", "targets"), *batches, strict=True):
            alike = one.dtype == other.dtype and one.shape == other.shape
            if not alike or not torch.equal(one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5)):
                shown = {"got": describe(one), "want": describe(other)}
                raise Mistake("mutated-input", call=call, name=f"`window[{number}]` ({name})", **shown)


def _judge_raised(trial: Trial, contained: Contained) -> None:
    """An error is right where the reference raises one, too, and only as long as nothing has changed."""
    error = trial.error
    if contained.fault != "exception" or isinstance(error, NotImplementedError):
        raise contained
    line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(".: ")[:160]
    if "unscale_() has already been called" in str(error):
        earlier = any(letter in "nig" for letter in trial.scene.plan[: trial.number])
        raise Mistake("unscaled-and-left" if earlier else "unscales-twice", call=trial.call, got=f"`{line}`")
    if "_scale is None" in str(error):
        raise Mistake("not-scaled", call=trial.call, got=f"`{line}`")
    if not isinstance(error, FloatingPointError):
        if trial.want is None:
            raise Mistake("other-error", call=trial.call, got=f"`{line}`", want="`FloatingPointError`")
        raise contained
    if trial.want is not None:
        raise Mistake("raises-on-overflow", call=trial.call, got=f"`{line}`", want="no error")
    changed = difference(trial.after, trial.before, trial.start, 0.0)
    if changed is not None:
        raise Mistake("changed-and-raised", call=trial.call, **changed)


def _judge_returned(trial: Trial) -> None:
    _expect_regions(trial)
    if trial.want is None:
        of_loss = trial.scene.plan[trial.number] in "ni"
        shown = {"got": f"it returned {describe(trial.got)}", "want": "`FloatingPointError`"}
        raise Mistake("loss-passes" if of_loss else "gradients-pass", call=trial.call, **shown)
    found = difference(trial.after, trial.right, trial.start, RTOL)
    if found is not None:
        _explain(trial, found)
        raise Mistake("wrong-step", call=trial.call, **found)
    _expect_one_at_a_time(trial)
    _expect_loss(trial)


def _expect_regions(trial: Trial) -> None:
    """Raise `Mistake` unless every forward pass ran under autocast of the dtype that was asked for."""
    dtype = trial.scene.dtype
    want = None if dtype == torch.float32 else dtype
    for event in trial.bench.events:
        if event.name == "forward" and event.autocast != want:
            got, right_one = ("off" if each is None else f"`{each}`" for each in (event.autocast, want))
            raise Mistake("other-region", call=trial.call, got=got, want=right_one)
        if event.name == "forward" and not event.training:
            raise Mistake("eval-mode", call=trial.call, got="evaluation mode", want="training mode")


def _explain(trial: Trial, found: dict[str, str]) -> None:
    """Raise the `Mistake` that a faulty step of ours makes, too, if one has led to the same numbers."""
    for diagnosis, faults in _MISCONCEPTIONS:
        bench, step = Bench(trial.scene), step_with(faults)
        try:
            for number in range(trial.number + 1):
                _quietly(step, bench.arguments(number))
        except (RuntimeError, AssertionError):
            continue
        if difference(trial.after, bench.state(), trial.start, RTOL) is None:
            raise Mistake(diagnosis, call=trial.call, **found)


def _expect_one_at_a_time(trial: Trial) -> None:
    """Raise `Mistake` unless each micro-batch had its forward and its backward pass before the next one."""
    events, sizes = trial.bench.events, trial.scene.sizes
    seen = [event.size for event in events if event.name == "forward"]
    if sorted(seen) != sorted(sizes):
        shown = {"got": ", ".join(map(str, seen)) or "none", "want": ", ".join(map(str, sizes))}
        raise Mistake("other-batches", call=trial.call, **shown)
    together = max(
        len(list(run)) for name, run in groupby(event.name for event in events) if name == "forward"
    )
    if together > 1:
        raise Mistake("graphs-together", call=trial.call, got=together, want=1)


def _expect_loss(trial: Trial) -> None:
    want = trial.want or 0.0
    got = expect.number(trial.call, trial.got, want)
    if _near(got, want):
        return
    scale = float(trial.before["the scale"])
    if scale != 1 and _near(got, want * scale):
        raise Mistake("loss-scaled", call=trial.call, got=f"{got:.6g}", want=f"{want:.6g}")
    raise Mistake("wrong-loss", call=trial.call, got=f"{got:.6g}", want=f"{want:.6g}")


def _near(got: float, want: float) -> bool:
    return abs(got - want) <= RTOL / 4 * abs(want)
