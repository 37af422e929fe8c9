"""Exercise 8.2: what training keeps for each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake

REGIMES = ("fp32", "autocast", "masters", "bf16")
OPTIMIZERS = ("adam", "momentum", "sgd")
KEYS = ("weights", "masters", "gradients", "state")
Account = Mapping[str, int]

_BYTES = {"fp32": 4, "autocast": 4, "masters": 2, "bf16": 2}  # of one weight of the model
_NUMBERS = {"adam": 2, "momentum": 1, "sgd": 0}  # that an optimizer keeps for one parameter


def right(regime: str, optimizer: str) -> dict[str, int]:
    """Return what is kept after backward and before a step that is not the first, in bytes per parameter."""
    weights = _BYTES[regime]
    masters = 4 if regime == "masters" else 0
    state = _NUMBERS[optimizer] * (masters or weights)
    return {"weights": weights, "masters": masters, "gradients": weights, "state": state}


def _weights(regime: str, optimizer: str, got: int) -> str:
    if regime == "autocast" and got == 2:
        return "autocast-converts-weights"
    return "copies-kept" if regime == "autocast" and got == 6 else "wrong-weights"


def _masters(regime: str, optimizer: str, got: int) -> str:
    if regime == "masters":
        return "masters-forgotten" if got == 0 else "masters-size"
    return "masters-under-autocast" if regime == "autocast" else "masters-invented"


def _gradients(regime: str, optimizer: str, got: int) -> str:
    if regime == "autocast" and got == 2:
        return "autocast-gradients"
    if regime == "masters" and got in (4, 6):
        return "gradients-of-masters"
    return "wrong-gradients"


def _state(regime: str, optimizer: str, got: int) -> str:
    number = right(regime, "momentum")["state"]
    if optimizer == "sgd":
        return "sgd-keeps-nothing"
    if got == 0:
        return "state-forgotten"
    other_dtype = {"masters": "state-of-masters", "autocast": "autocast-state", "bf16": "state-always-fp32"}
    # FP32 comes first: whoever gets that right knows how many numbers there are.
    if regime in other_dtype and got == _NUMBERS[optimizer] * (6 - number):  # 2 for 4, and 4 for 2
        return other_dtype[regime]
    return "one-moment" if optimizer == "adam" and got == number else "wrong-state"


_WHY = {"weights": _weights, "masters": _masters, "gradients": _gradients, "state": _state}


def _read(call: str, got: Any, want: Account) -> dict[str, int]:
    """Return the account if it is one, or raise `Mistake`."""
    if type(got) is not dict:
        if type(got) in (int, float):
            raise Mistake("one-number", call=call, got=got, want=dict(want))
        expected = f"a `dict` with the keys {', '.join(KEYS)}"
        advice = "Write it as `{...}`, with a colon between each name and its number."
        if got is None:
            raise Mistake("returned-none", call=call, got=None, want=expected)
        words = {"got": describe(got), "kind": kind(got), "want": expected, "advice": advice}
        raise Mistake("wrong-type", call=call, **words)
    if set(got) != set(KEYS):
        raise Mistake("wrong-keys", call=call, got=describe(list(got)), want=describe(list(KEYS)))
    return {key: expect.whole_number(f"{call}, at {key!r},", got[key], want[key]) for key in KEYS}


@checker("8.2")
def training_bytes_per_parameter(ask: Ask) -> None:
    """Ask for all regimes with Adam first, then with the other optimizers; tell the first number that is wrong."""
    trials = []
    for optimizer in OPTIMIZERS:
        for regime in REGIMES:
            want = right(regime, optimizer)
            trials.append((regime, optimizer, _read_one(ask, regime, optimizer, want), want))
    if all(got["weights"] == got["gradients"] == 2 for _, _, got, _ in trials):
        call = f"`training_bytes_per_parameter('{REGIMES[0]}', '{OPTIMIZERS[0]}')`"
        raise Mistake("two-for-everything", call=call, got=2, want=4)
    for regime, optimizer, got, want in trials:
        for key in KEYS:
            if got[key] != want[key]:
                call = f"`training_bytes_per_parameter('{regime}', '{optimizer}')`"
                raise Mistake(
                    _WHY[key](regime, optimizer, got[key]), call=call, key=key, got=got[key], want=want[key]
                )


def _read_one(ask: Ask, regime: str, optimizer: str, want: Account) -> dict[str, int]:
    got = ask(regime, optimizer)
    return _read(ask.call, got, want)
