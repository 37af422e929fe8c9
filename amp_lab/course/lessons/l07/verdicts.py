"""From what a step did to the mistake behind it.

Whether a step is right is seen in weights, scale and momenta. What is wrong with it is asked from the watcher first
(`amp_lab.watch` looks on while the learner's code runs), then from what the exercise knows of, then from the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07 import basics
from amp_lab.course.lessons.l07.trials import RTOL, Trial
from amp_lab.watching.report import Diagnosis
from amp_lab.watching.rules.rule import Severity

# What PyTorch says, and what it means; None: the calls tell.
_ERRORS: tuple[tuple[str, str | None], ...] = (
    ("unscale_() has already been called", "unscales-twice"),
    ("unscale_() is being called after step()", "unscales-late"),
    ("step() has already been called", "stepped-twice"),
    ("_scale is None", None),
    ("No inf checks were recorded", None),  # for this optimizer, or prior to update
)
# What the watcher rightly says of a batch, in scenes that put it there. It is not what is wrong with the answer.
_OF_THE_DATA = ("nan-in-data", "loss-not-finite", "loss-overflows", "scale-collapse", "every-step-skipped")
SAYS = basics.SAYS | {
    "unscales-twice": "`unscale_` was called twice for one optimizer in one step.",
    "unscales-late": "`unscale_` was called after the step.",
    "graph-kept": "The gradients carry a graph of their own, as after `create_graph=True`, which stays in memory.",
}
# The watcher's rules, and what exercise 7.1 calls the same.
_RULES = {
    "zero-grad-missing": "stale-counts",
    "zero-grad-skipped": "stale-counts",
    "zero-grad-before-step": "cleared-too-early",
    "fp16-without-scaler": "not-scaled",
    "scaled-loss-unused": "not-scaled",
    "step-without-scale": "not-scaled",
    "unscaled-backward": "not-scaled",
    "optimizer-step-as-well": "stepped-twice",
    "step-twice": "stepped-twice",
    "update-before-step": "update-first",
    "update-missing": "no-update",
    "update-twice": "update-twice",
    "unscale-twice": "unscales-twice",
    "unscale-after-step": "unscales-late",
    "forward-outside-region": "no-autocast",
    "scaler-without-autocast": "no-autocast",
    "scaler-with-bf16": "bf16-region",
    "scaler-in-loop": "other-scaler",
    "scaler-unused": "other-scaler",
    "two-scalers": "other-scaler",
}
Explain = Callable[[Trial, dict[str, Any]], None]


def expect_step(
    trial: Trial,
    explain: Explain,
    otherwise: str,
    *,
    told: str | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
    passes: int = 1,
    optimizers: int = 1,
    rtol: float = RTOL,
    by_name: bool = False,
) -> None:
    """Raise `Mistake` unless a step did what it should to weights, scale and momenta, and in the right way.

    `rules` maps rules of the watcher to diagnoses of the exercise. `explain` gets the trial and what a sentence shows;
    it raises what else the exercise is about. Then the order of calls is looked at: its faults are diagnoses by their
    own names with `by_name`, else one called `basics` with `says`. What only the watcher knows of is the diagnosis
    `told`; what nobody does, `otherwise`. An error of which nothing is known passes.
    """
    counts = {"passes": passes, "optimizers": optimizers}
    certain = basics.certain_fault(trial.calls, **counts)
    far = trial.differs(rtol)
    if far is None and certain is None and not trial.error:
        return
    found = _known_error(trial, counts) if trial.error else basics.fault(trial.calls, passes, optimizers)
    watcher = first_words(trial)
    observed: dict[str, Any] = {"call": trial.call, "watcher": f" {in_quotes(watcher)}" if watcher else ""}
    observed |= {"place": "an error", "got": f"`{trial.error}`", "want": "none"} if trial.error else far or {}
    if certain in ("no-autocast", "bf16-region") or (certain and far is None):
        raise _basic(certain, observed, trial, by_name=by_name)
    if found in basics.PLAIN:
        raise _basic(found, observed, trial, by_name=by_name)
    root = watcher.id if watcher else ""
    if root in rules:
        raise Mistake(rules[root], **observed)
    explain(trial, observed)
    if root in _RULES:
        raise _basic(_RULES[root], observed, trial, by_name=by_name)
    if root and told and found in (None, "forward-twice"):
        raise Mistake(told, **observed)
    if found is not None:
        raise _basic(found, observed, trial, by_name=by_name)
    if not trial.error:
        raise Mistake(otherwise, **observed)


def expect_no_graph(trial: Trial, *, by_name: bool = False) -> None:
    """Raise `Mistake` if a step has left gradients that carry a graph of their own."""
    grads = [each.grad for net in trial.bench.models for each in net.parameters()]
    if any(each is not None and each.requires_grad for each in grads):
        observed = {"call": trial.call, "place": "`.grad`", "got": "a tensor with `requires_grad=True`"}
        raise _basic("graph-kept", observed | {"want": "without", "watcher": ""}, trial, by_name=by_name)


def first_words(trial: Trial) -> Diagnosis | None:
    """Return the watcher's first root cause, if it has found that something is wrong."""
    passed = ("raised", *_OF_THE_DATA)
    roots = trial.watched().diagnoses
    return next((each for each in roots if each.severity > Severity.NOTE and each.id not in passed), None)


def in_quotes(diagnosis: Diagnosis) -> str:
    """Return what the watcher says."""
    return f"The watcher says: *{diagnosis.sentence}*"


def _known_error(trial: Trial, counts: dict[str, int]) -> str | None:
    names = [each.name for each in trial.calls]
    if "prior to update" in trial.error and "backward" in names and "step" not in names:
        return "update-first"
    for part, name in _ERRORS:
        if part in trial.error:
            ended = "prior to update" in trial.error
            return name or basics.fault(trial.calls, counts["passes"], counts["optimizers"], ended=ended)
    return None


def known_to_pytorch(trial: Trial) -> bool:
    """Return whether an error is of those with which PyTorch refuses calls in a wrong order."""
    return any(part in trial.error for part, _ in _ERRORS)


def _basic(name: str, observed: dict[str, Any], trial: Trial, *, by_name: bool) -> Mistake:
    """Return the mistake; where the weights do not show it, what is shown is the order of calls."""
    if "got" not in observed:
        place, got, want = _seen(name, trial)
        observed = observed | {"place": place, "got": got, "want": want}
    return Mistake(name, **observed) if by_name else Mistake("basics", **observed, says=SAYS[name])


def _seen(name: str, trial: Trial) -> tuple[str, str, str]:
    forwards = [each for each in trial.calls if each.name == "forward"]
    if name == "forward-twice":
        return "the number of calls of the model", str(len(forwards)), "one for each batch"
    if name == "other-scaler":
        return "the scaler that asked for the step", "another one", "the one that was passed"
    if name == "backward-inside":
        return "autocast, during the backward pass,", "on", "off"
    dtype = next(each.autocast for each in forwards if each.autocast != torch.float16)
    return "autocast, during the forward pass,", "off" if dtype is None else f"`{dtype}`", "`torch.float16`"
