"""Exercise 5.4: a scaler that a checkpoint can hold."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l05.finished import SCALERS, Watch
from amp_lab.course.lessons.l05.given import ForgetfulScaler
from amp_lab.course.lessons.l05.runs import listed, play, scale_of

_SETTINGS: dict[str, Any] = {
    "init_scale": 2.0**12,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 5,
}
_OTHERS: dict[str, Any] = {
    "init_scale": 2.0**9,
    "growth_factor": 8.0,
    "backoff_factor": 0.125,
    "growth_interval": 3,
}
_RANDOM_RUNS = 12


class Scene(NamedTuple):
    """A scaler with `settings` lives through `past` and is saved; one with others, after a past of its own, loads it.

    From there, both must go through `future` alike. They differ only in what `diagnosis` is about, called `lost`.
    """

    diagnosis: str
    lost: str
    settings: dict[str, Any]
    other_settings: dict[str, Any]
    past: str
    other_past: str
    future: str


def _only(name: str) -> dict[str, Any]:
    return _SETTINGS | {name: _OTHERS[name]}


# In each, only one number differs between the two. The scale comes first: where it is wrong, nothing after it is right.
_SCENES = (
    Scene("scale-lost", "scale", _SETTINGS, _only("init_scale"), "o", "", "c"),
    Scene("scale-rounded", "scale", _SETTINGS | {"init_scale": 0.5}, _SETTINGS, "o", "", "c"),
    Scene("scale-rounded", "scale", _SETTINGS | {"init_scale": 1000.1}, _SETTINGS, "o", "", "c"),
    Scene("scale-rounded", "scale", _SETTINGS | {"init_scale": 2.0**-110}, _SETTINGS, "o", "", "c"),
    Scene("setting-lost", "growth_factor", _SETTINGS, _only("growth_factor"), "", "", "cccccc"),
    Scene("setting-lost", "backoff_factor", _SETTINGS, _only("backoff_factor"), "", "", "co"),
    Scene("setting-lost", "growth_interval", _SETTINGS, _only("growth_interval"), "", "", "cccccc"),
    Scene(
        "setting-rounded", "growth_factor", _SETTINGS | {"growth_factor": 1.7}, _SETTINGS, "", "", "cccccc"
    ),
    Scene("setting-rounded", "backoff_factor", _SETTINGS | {"backoff_factor": 0.7}, _SETTINGS, "", "", "co"),
    Scene("count-lost", "clean_steps", _SETTINGS, _SETTINGS, "ccc", "", "ccccccc"),
    Scene("count-lost", "clean_steps", _SETTINGS, _SETTINGS, "c", "ccc", "ccccccc"),
)


@checker("5.4")
def resumable_scaler(ask: Ask) -> None:
    """Look at what is saved, then at what a loaded scaler does: one number after the other, then all of them."""
    ask.in_words, ask.around = _in_words, Watch(ask, *SCALERS)
    _expect_plain(ask)
    _expect_apart(ask)
    _expect_tensor(ask)
    for scene in _SCENES:
        _play(ask, scene)
    for scene in _random_scenes():
        _play(ask, scene)


def _in_words(**settings: Any) -> str:
    return f"`ResumableScaler({', '.join(f'{name}={value!r}' for name, value in settings.items())})`"


def _saved(ask: Ask, scaler: Any) -> dict[str, Any]:
    ask.call = "`scaler.state_dict()`"
    state = ask.run(lambda: scaler.state_dict())
    if state is None:
        raise Mistake("returned-none", call=ask.call, got=None, want="a `dict` of numbers")
    if not issubclass(type(state), dict):
        advice = "Give each number a name: `{...: ...}`."
        observed = {"got": describe(state), "kind": kind(state), "want": "a `dict`", "advice": advice}
        raise Mistake("wrong-type", call=ask.call, **observed)
    return state  # type: ignore[no-any-return]


def _plain(ask: Ask, scaler: Any) -> dict[str, float]:
    """Return the state of a scaler, or raise `Mistake` unless it has names and numbers in it and nothing else."""
    state = _saved(ask, scaler)
    for name, value in dict.items(state):
        if type(name) is not str:
            raise Mistake("no-name", call=ask.call, got=f"the key {describe(name)}")
        if type(value) not in (int, float):
            observed = {"got": describe(value), "kind": kind(value), "want": "a plain number"}
            raise Mistake("not-plain", call=ask.call, name=name, **observed)
    return state


def _load(ask: Ask, scaler: Any, state: dict[str, float]) -> None:
    before = _written(state)
    ask.call = "`scaler.load_state_dict(state)`"
    ask.run(lambda: scaler.load_state_dict(state))
    if _written(state) != before:
        raise Mistake("mutated-input", call=ask.call, name="`state`", want=before, got=_written(state))


def _written(state: dict[Any, Any]) -> str:
    """Return all that is in a state, whatever became of it."""
    return f"{{{', '.join(f'{describe(name)}: {_text(value)}' for name, value in dict.items(state))}}}"


def _text(value: Any) -> str:
    """Return a value as JSON writes it, or in words if JSON refuses it; containers are read to the last number."""
    try:
        return json.dumps(value)
    except Exception:  # also whatever a class of the learner's may raise
        return describe(value)


def _holds_objects(value: Any) -> bool:
    """Return whether a value is a container with something in it that JSON refuses, which is told by itself."""
    return isinstance(value, (dict, list, tuple)) and _text(value) == describe(value)


def _expect_plain(ask: Ask) -> None:
    """Expect a dict of numbers that do not change when the scaler goes on."""
    scaler = ask(**_SETTINGS)
    ask.returned = False  # a class that is still the stub can be made: it inherits from a finished one
    state = _saved(ask, scaler)
    before = {name: _text(value) for name, value in dict.items(state)}
    ask.run(play, scaler, "coc")
    for name, value in dict.items(state):
        if name in before and before[name] != _text(value) and not _holds_objects(value):
            raise Mistake("state-changes", call=ask.call, name=name, got=_text(value), want=before[name])
    _plain(ask, scaler)


def _expect_apart(ask: Ask) -> None:
    """Let two scalers load the same state, and one of them go on."""
    state = _plain(ask, ask(**_SETTINGS))
    first, second = ask(**_OTHERS), ask(**_OTHERS)
    _load(ask, first, state)
    _load(ask, second, state)
    before, call = _written(state), ask.call
    scale = ask.run(scale_of, second)
    ask.run(play, first, "co")
    after = ask.run(scale_of, second)
    if after != scale or _written(state) != before:
        raise Mistake("shares-state", call=call, got=after if after != scale else _written(state))


def _play(ask: Ask, scene: Scene) -> None:
    saved, loaded = ask(**scene.settings), ask(**scene.other_settings)
    _live(ask, saved, scene.past)
    _live(ask, loaded, scene.other_past)
    state = json.loads(json.dumps(_plain(ask, saved)))
    _load(ask, loaded, state)
    ask.call = f"`scaler.load_state_dict(state)` with a run after it ({_spelt(scene.future)})"
    now = ask.run(scale_of, loaded)
    got = (now, *_live(ask, loaded, scene.future))
    want = _as_without_a_break(scene)
    if got != want:
        observed = {"got": f"the scales {listed(got)}", "want": listed(want), "lost": scene.lost}
        raise Mistake(scene.diagnosis, call=ask.call, **observed)


def _live(ask: Ask, scaler: Any, pattern: str) -> tuple[float, ...]:
    return ask.run(play, scaler, pattern).scales if pattern else ()


def _as_without_a_break(scene: Scene) -> tuple[float, ...]:
    scaler = ForgetfulScaler(**scene.settings)
    if scene.past:
        play(scaler, scene.past)
    return (scaler.get_scale(), *play(scaler, scene.future).scales)


def _expect_tensor(ask: Ask) -> None:
    """Expect that a loaded scaler scales an FP16 loss in FP32 and to one number, as only a 0-dim FP32 scale does."""
    scaler = ask(**_OTHERS)
    _load(ask, scaler, _plain(ask, ask(**_SETTINGS)))
    for dtype in (torch.float16, torch.float32):
        loss = torch.tensor(100.0, dtype=dtype)
        ask.call = f"`scaler.scale({describe(loss)})` after `load_state_dict`"
        got, want = ask.run(_scale, scaler, loss), ForgetfulScaler(**_SETTINGS).scale(loss)
        if type(got) is not torch.Tensor or (got.dtype, got.shape) != (want.dtype, want.shape):
            raise Mistake("scale-type", call=ask.call, got=describe(got), want=describe(want))


def _scale(scaler: Any, loss: torch.Tensor) -> Any:
    return scaler.scale(loss)


def _random_scenes() -> Sequence[Scene]:
    chance = random.Random(0)

    def settings() -> dict[str, Any]:
        return {
            "init_scale": chance.choice((1.0, 1.1, 1.9)) * 2.0 ** chance.randint(-20, 20),
            "growth_factor": chance.choice((1.5, 2.0, 3.7, 8.0)),
            "backoff_factor": chance.choice((0.125, 0.3, 0.5, 0.9)),
            "growth_interval": chance.choice((1, 2, 3, 5)),
        }

    def run(longest: int) -> str:
        return "".join(chance.choice("ccccoc") for _ in range(chance.randint(1, longest)))

    return [
        Scene("goes-on-otherwise", "", settings(), settings(), run(9), run(9), run(12))
        for _ in range(_RANDOM_RUNS)
    ]


def _spelt(pattern: str) -> str:
    return ", ".join("clean" if letter == "c" else "overflow" for letter in pattern)
