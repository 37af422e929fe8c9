"""Exercise 5.2: the rule by which the scale moves, as a pure function."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Trial, alike
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l05.finished import SCALERS, Watch
from amp_lab.scaling.rule import ScaleRule, ScaleState
from amp_lab.scaling.rule import next_scale as finished_rule

Args = tuple[ScaleState, bool, ScaleRule]
Idea = Callable[[ScaleState, bool, ScaleRule], ScaleState]
_WALKS, _STEPS, _LARGEST = 20, 60, 2.0**100


class Group(NamedTuple):
    """Calls that show the same ideas."""

    calls: tuple[Args, ...]
    misconceptions: Sequence[tuple[str, Idea]]


def _next(state: ScaleState, overflowed: bool, rule: ScaleRule, **other: float) -> ScaleState:
    """Follow the rule, or one with `other` settings, which may be such as no `ScaleRule` can have."""
    given = vars(rule) | other
    if overflowed:
        return ScaleState(max(state.scale * given["backoff_factor"], given["min_scale"]), 0)
    if state.clean_steps + 1 >= given["growth_interval"]:
        return ScaleState(state.scale * given["growth_factor"], 0)
    return ScaleState(state.scale, state.clean_steps + 1)


def _with(**settings: float) -> Idea:
    return lambda state, overflowed, rule: _next(state, overflowed, rule, **settings)


def _scale(new: Callable[[ScaleState, ScaleRule], float]) -> Idea:
    """Change the scale to `new(state, rule)`, and count as is right."""
    return lambda state, overflowed, rule: _next(state, overflowed, rule)._replace(scale=new(state, rule))


def _count(new: Callable[[ScaleState], int]) -> Idea:
    """Change the scale as is right, and the count to `new(state)`."""
    return lambda state, overflowed, rule: _next(state, overflowed, rule)._replace(clean_steps=new(state))


def _interval(more: int) -> Idea:
    return lambda s, overflowed, rule: _next(s, overflowed, rule, growth_interval=rule.growth_interval + more)


def _unless_below(state: ScaleState, rule: ScaleRule) -> float:
    """Leave the scale as it is where the smaller one would be under the floor."""
    smaller = state.scale * rule.backoff_factor
    return state.scale if smaller < _floor(rule) else smaller


def _while_above(state: ScaleState, rule: ScaleRule) -> float:
    """Back off wherever the scale is still above the floor, without a look at where that leads."""
    return state.scale * rule.backoff_factor if state.scale > _floor(rule) else state.scale


def _floor(rule: ScaleRule) -> float:
    return rule.min_scale or 0.0


def _unchanged_at_floor(state: ScaleState, overflowed: bool, rule: ScaleRule) -> ScaleState:
    return state if state.scale == rule.min_scale else _next(state, overflowed, rule)


def _unchanged_at_floor_while_above(state: ScaleState, overflowed: bool, rule: ScaleRule) -> ScaleState:
    return state if state.scale == rule.min_scale else _next(state, overflowed, rule, min_scale=0.0)


def _one_for_zero(state: ScaleState, overflowed: bool, rule: ScaleRule) -> ScaleState:
    after = _next(state, overflowed, rule)
    return after._replace(clean_steps=after.clean_steps or 1)


def _grown(state: ScaleState, rule: ScaleRule) -> float:
    return state.scale * rule.growth_factor


_THREE = ScaleRule(growth_factor=4.0, backoff_factor=0.5, growth_interval=3, min_scale=1.0)
_TEN = ScaleRule(growth_factor=2.0, backoff_factor=0.25, growth_interval=10, min_scale=16.0)
_GROUPS = (
    Group(
        ((ScaleState(1024.0, 2), True, _THREE), (ScaleState(65536.0, 5), True, _TEN)),
        (
            ("inverted", lambda state, overflowed, rule: _next(state, not overflowed, rule)),
            ("no-backoff", _with(backoff_factor=1.0)),
            ("grows-on-overflow", _scale(_grown)),
            ("shrinks-by-growth", _scale(lambda state, rule: state.scale / rule.growth_factor)),
            ("divides-by-backoff", _scale(lambda state, rule: state.scale / rule.backoff_factor)),
            ("fixed-settings", _with(backoff_factor=0.5)),
            ("min-for-max", _scale(lambda state, rule: _floor(rule))),
            ("counter-survives-overflow", _count(lambda state: state.clean_steps)),
            ("counter-survives-overflow", _count(lambda state: state.clean_steps + 1)),
            ("counter-starts-at-one", _count(lambda state: 1)),
        ),
    ),
    Group(
        (
            (ScaleState(32.0, 0), True, _TEN),
            (ScaleState(16.0, 9), True, _TEN),
            (ScaleState(1.0, 0), True, _THREE),
            (ScaleState(24.0, 1), True, _TEN),
        ),
        (
            ("sinks-below", _with(min_scale=0.0)),
            ("sinks-below", _scale(_while_above)),
            ("sinks-below", _unchanged_at_floor_while_above),
            ("fixed-floor", _with(min_scale=1.0)),
            ("stops-above-floor", _scale(_unless_below)),
            ("counter-survives-overflow", _count(lambda state: state.clean_steps)),
            ("counter-survives-overflow", _unchanged_at_floor),
        ),
    ),
    Group(
        (
            (ScaleState(1024.0, 0), False, _THREE),
            (ScaleState(1024.0, 1), False, _THREE),
            (ScaleState(32.0, 8), False, _TEN),
        ),
        (
            ("does-not-count", _count(lambda state: state.clean_steps)),
            ("does-not-count", _count(lambda state: 0)),
            ("grows-each-time", lambda state, o, rule: ScaleState(_grown(state, rule), 0)),
            ("grows-each-time", lambda s, o, rule: ScaleState(_grown(s, rule), s.clean_steps + 1)),
            ("grows-early", _interval(-1)),
        ),
    ),
    Group(
        (
            (ScaleState(1024.0, 2), False, _THREE),
            (ScaleState(256.0, 9), False, _TEN),
            (ScaleState(8.0, 0), False, ScaleRule(2.0, 0.5, 1, 1.0)),
            (ScaleState(64.0, 1999), False, ScaleRule(8.0, 0.5, 4000, 1.0)),
        ),
        (
            ("grows-late", _interval(1)),
            ("never-grows", _with(growth_factor=1.0)),
            ("grows-by-backoff", lambda s, o, rule: _next(s, o, rule, growth_factor=1 / rule.backoff_factor)),
            ("grows-by-backoff", lambda s, o, rule: _next(s, o, rule, growth_factor=rule.backoff_factor)),
            ("fixed-settings", _with(growth_interval=2000)),
            ("fixed-settings", _with(growth_factor=2.0)),
            ("counter-survives-growth", _count(lambda state: state.clean_steps + 1)),
            ("counter-survives-growth", _count(lambda state: state.clean_steps)),
            ("counter-starts-at-one", _one_for_zero),
        ),
    ),
)


@checker("5.2")
def next_scale(ask: Ask) -> None:
    """Ask for what shows one idea at a time, then let the function walk through random runs."""
    ask.in_words, ask.around = _in_words, Watch(ask, finished_rule, *SCALERS)
    for group in _GROUPS:
        _judge(ask, group)
    walked = list(_walks())
    _recognise([_trial(args, got) for args, got in zip(walked, ask.many(walked), strict=True)], ())


def _judge(ask: Ask, group: Group) -> None:
    trials: list[Trial] = []
    try:
        for args in group.calls:
            trials.append(_trial(args, ask(*args)))
    except (Mistake, Contained) as failure:
        _recognise(trials, group.misconceptions)
        if isinstance(failure, Contained) and "can't set attribute" in str(failure.error):
            raise Mistake("changes-state", call=ask.call, got=failure.sentence) from None
        raise
    _recognise(trials, group.misconceptions)


def _trial(args: Args, got: Any) -> Trial:
    call = _in_words(*args)
    want = _next(*args)
    return Trial(call, args, _read(call, got, want), want)


def _read(call: str, got: Any, want: ScaleState) -> ScaleState:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a new `ScaleState`")
    if type(got) is not ScaleState:
        raise Mistake("no-state", call=call, got=describe(got), kind=kind(got))
    scale = expect.number(f"{call}, in `scale`,", got.scale, want.scale)
    clean_steps = expect.whole_number(f"{call}, in `clean_steps`,", got.clean_steps, want.clean_steps)
    return ScaleState(scale, clean_steps)


def _recognise(trials: Sequence[Trial], misconceptions: Sequence[tuple[str, Idea]]) -> None:
    """Do as `expect.recognise` does, but show a state under the names of its two numbers."""
    wrong = [trial for trial in trials if not alike(trial.got, trial.want)]
    if not wrong:
        return
    shown = {"call": wrong[0].call, "got": f"`{wrong[0].got}`", "want": f"`{wrong[0].want}`"}
    for diagnosis, idea in misconceptions:
        if all(alike(trial.got, idea(*trial.args)) for trial in trials):
            raise Mistake(diagnosis, **shown)
    raise Mistake("wrong-value", **shown)


def _in_words(state: ScaleState, overflowed: bool, rule: ScaleRule) -> str:
    return f"`next_scale({state}, {overflowed}, {rule})`"


def _walks() -> Iterator[Args]:
    """Walk along the right states with settings by chance: rare and frequent overflows, short and long intervals."""
    chance = random.Random(0)
    for _ in range(_WALKS):
        rule = ScaleRule(
            growth_factor=chance.choice((2.0, 4.0, 8.0)),
            backoff_factor=chance.choice((0.125, 0.25, 0.5)),
            growth_interval=chance.choice((1, 2, 3, 5, 20)),
            min_scale=chance.choice((0.5, 1.0, 64.0)),
        )
        often, state = chance.choice((0.05, 0.3, 0.7)), ScaleState(2.0 ** chance.randint(6, 20), 0)
        for _ in range(_STEPS):
            args = (state, chance.random() < often, rule)
            yield args
            state = _next(*args)
            if state.scale > _LARGEST:  # whether a scale may leave FP32 is not asked
                state = ScaleState(_LARGEST, state.clean_steps)
